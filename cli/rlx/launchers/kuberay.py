"""A manifest for Kubernetes with the KubeRay operator: a ConfigMap with the configuration and the user's reward, and a
RayJob that makes a Ray cluster, trains on it and removes it.

Source of the fields: the RayJob reference of KubeRay (ray.io/v1). The operator hands the image's container the command
of its Ray node in KUBERAY_GEN_RAY_START_CMD; `rlx env run` starts that in the environment that the run trains in.
`submissionMode: HTTPMode` submits without a further pod.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import yaml

from rlx.env import lockfile
from rlx.launchers.job import Job
from rlx.templates import shell_words
from verl_core.config import write
from verl_core.config.effective import effective, uses_rollout
from verl_core.config.errors import UserError

PROJECT = "/project"
LONGEST_NAME = 47  # of a RayJob: the operator makes longer names from it
START_NODE = 'ulimit -n 65536; exec rlx env run {words} -- bash -c "$KUBERAY_GEN_RAY_START_CMD"'


def render(job: Job) -> str:
    """ConfigMap and RayJob of this very configuration, or a project's RayJob, which takes its files from a ConfigMap
    that kubectl makes. Image and claim that the configuration does not name are IMAGE and CLAIM. UserError for a reward
    file that is not there."""
    name = dns_name("-".join(filter(None, [job.config.trainer.project_name, job.name])))
    if job.folder is None:
        return _project_head(job, name) + document(ray_job(job, name, "", []))
    files = _files(job)
    settings = ["-f", f"{PROJECT}/config.yaml"]
    settings += [f"{key}={PROJECT}/{config_key(path)}" for key, path in _code(job)]
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(job, name), "data": files}
    manifest = ray_job(job, name, f"{PROJECT}/config.yaml", settings)
    return f"# {job.title}\n" + document(config_map) + "---\n" + document(manifest)


def lacks(job: Job) -> Iterator[UserError]:
    """What the manifest needs before it can be submitted."""
    for key in ("image", "claim"):
        if getattr(job.launch.kuberay, key) is None:
            yield UserError(f"--launcher kuberay needs launch.kuberay.{key}", f"launch.kuberay.{key}=NAME")


def ray_job(job: Job, name: str, env_words: str, settings: list[str]) -> dict[str, Any]:
    """The RayJob. `env_words` name the environment for `rlx env run`, `settings` are the first words of `rlx train`."""
    kuberay, trainer = job.launch.kuberay, job.config.trainer
    train = ["rlx", "train", *settings, *dict.fromkeys(("--resume", *job.flags)), "cluster.ray_address=auto"]
    if trainer.experiment_name is None:
        train.append(f"trainer.experiment_name={job.name or name}")
    if not trainer.default_local_dir.startswith("/"):  # a pod's own disk goes with the pod
        train.append(f"trainer.default_local_dir={kuberay.mount}/{trainer.default_local_dir.removeprefix('~/')}")
    metadata = _metadata(job, name)
    metadata["annotations"] = {"ray.io/overwrite-container-cmd": "true"}
    if kuberay.queue:
        metadata["labels"] = {"kueue.x-k8s.io/queue-name": kuberay.queue}
    cluster: dict[str, Any] = {
        "rayVersion": lockfile.locked_version("ray")[0],
        "headGroupSpec": {"rayStartParams": {}, "template": {"spec": _pod(job, name, env_words)}},
    }
    if workers := job.machines.count - 1:
        group = {"groupName": "workers", "replicas": workers, "minReplicas": workers, "maxReplicas": workers}
        group |= {"rayStartParams": {}, "template": {"spec": _pod(job, name, env_words)}}
        cluster["workerGroupSpecs"] = [group]
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": metadata,
        "spec": {
            "entrypoint": shell_words(train),
            "submissionMode": "HTTPMode",
            "shutdownAfterJobFinishes": True,
            "backoffLimit": kuberay.max_restarts,
            "rayClusterSpec": cluster,
        },
    }


def dns_name(text: str) -> str:
    """A name that Kubernetes takes: lower case, digits and `-`, a letter first; a long one is cut and numbered."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "rlx"
    name = name if name[0].isalpha() else f"rlx-{name}"
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 9].rstrip('-')}-{crc32(text.encode()):08x}"


def config_key(path: str) -> str:
    """The name of a file in a ConfigMap, which takes letters, digits, `-`, `_` and `.`."""
    return re.sub(r"[^\w.-]", "_", Path(path).name, flags=re.ASCII)


def document(value: Any) -> str:
    """YAML that the 1.1 and 1.2 rules read alike: every text that could be taken for something else is quoted."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6)


def _project_head(job: Job, name: str) -> str:
    """What to do before and with a project's manifest, as comments."""
    files = ["rlx.yaml"] + (["reward.py", "algorithm.py"] if uses_rollout(effective(job.config)) else [])
    sources = " ".join(f"--from-file={file}" for file in files)
    return (
        f"# {job.title}, for the KubeRay operator.\n"
        "# Replace IMAGE (an image with the programs rlx, ray and wget) and CLAIM (a volume claim that every pod can\n"
        "# write); `rlx train --launcher kuberay` reads them from launch.kuberay. Then, from the project folder:\n"
        f"#   kubectl create configmap {name} {sources}\n"
        "#   kubectl apply -f launch/kuberay.yaml\n"
    )


def _files(job: Job) -> dict[str, str]:
    """The ConfigMap's files: the whole configuration, and the user's code."""
    files = {"config.yaml": write.dump(write.of_run(job.config))}
    for key, path in _code(job):
        try:
            files[config_key(path)] = Path(path).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            raise UserError(f"{key}={path} cannot be read: {problem}", "check the path") from problem
    return files


def _code(job: Job) -> list[tuple[str, str]]:
    """Keys that name Python files of the user's, and the files."""
    named = {
        "reward.custom_reward_function.path": job.config.reward.custom_reward_function.path,
        "algorithm.module": job.config.algorithm.module,
        "data.curriculum.path": job.config.data.curriculum.path,
    }
    return [(key, path) for key, path in named.items() if path]


def _metadata(job: Job, name: str) -> dict[str, Any]:
    namespace = job.launch.kuberay.namespace
    return {"name": name, **({"namespace": namespace} if namespace else {})}


def _pod(job: Job, name: str, env_words: str) -> dict[str, Any]:
    """The pod of one machine."""
    kuberay, machines = job.launch.kuberay, job.machines
    job.exports()  # names are checked
    resources: dict[str, Any] = {"cpu": machines.ranks * job.launch.cpus_per_rank}
    if job.launch.memory_per_rank:
        resources["memory"] = f"{machines.ranks * job.launch.memory_per_rank}Gi"
    if machines.gpus:
        resources["nvidia.com/gpu"] = machines.gpus
    variables = {"HF_HOME": f"{kuberay.mount}/huggingface"} | job.launch.env
    container = {
        "name": "ray",
        "image": kuberay.image or "IMAGE",
        "command": ["/bin/bash", "-c", "--"],
        "args": [START_NODE.format(words=env_words).replace("  ", " ")],
        "workingDir": PROJECT,
        "env": [{"name": key, "value": value} for key, value in variables.items()],
        "resources": {"limits": resources, "requests": dict(resources)},
        "volumeMounts": [
            {"name": "project", "mountPath": PROJECT},
            {"name": "shared", "mountPath": kuberay.mount},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    if kuberay.secret:
        container["envFrom"] = [{"secretRef": {"name": kuberay.secret}}]
    pod: dict[str, Any] = {
        "containers": [container],
        "volumes": [
            {"name": "project", "configMap": {"name": name}},
            {"name": "shared", "persistentVolumeClaim": {"claimName": kuberay.claim or "CLAIM"}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
    }
    if kuberay.node_selector:
        pod["nodeSelector"] = dict(kuberay.node_selector)
    return pod


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


_PLAIN = re.compile(r"(?!(?:y|n|yes|no|on|off|true|false|null)$)[a-z][a-z0-9./_-]*", re.IGNORECASE)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if _PLAIN.fullmatch(text) else "|" if "\n" in text else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
