"""`rlx env sync --from FILE`: an environment from an archive of `rlx env pack`, without network."""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rlx import ui
from rlx.env import archive, driver, folder_lock, lockfile, manager, preflight, uv
from rlx.env.archive import Manifest, Wheel
from rlx.env.locked_files import LockedFile, Target, select
from rlx.env.manager import Environment
from rlx.env.requirements import locked_packages
from verl_core.config.errors import EnvError

SHORT = 12  # hexadecimal digits of a digest that a person is shown


class Contents(NamedTuple):
    """What an archive has for an environment, and what of it it lacks."""

    wheels: list[Wheel]
    lacking: list[LockedFile]


def held(path: Path) -> Environment:
    """The environment of all extras that the archive was packed for."""
    manifest = archive.read_manifest(path)
    _check_fits(path, manifest)  # first: another lock may not even have these extras
    return manager.environment(manifest.extras)


def maker(path: Path, wanted: Environment, offline: bool, uses_gpu: bool) -> Callable[[Environment], bool]:
    """What `manager.ensure` calls to make the environment from the archive, once it is sure that this can be done.

    `offline`: no network is touched, and an archive that lacks a package is refused; else uv fetches that package.
    `uses_gpu`: an NVIDIA driver too old for the lock refuses. Every wheel must have a hash of the present lock, or be
    built from a source that has. Raises EnvError, UserError.
    """
    manifest = archive.read_manifest(path)
    _check_fits(path, manifest)
    preflight.check_python()
    found = _compare(path, manifest, wanted)
    if offline and found.lacking:
        names = ", ".join(file.name for file in found.lacking)
        raise EnvError(
            f"{path} lacks {names}: it holds the extras {', '.join(manifest.extras)}",
            f"pack what is wanted: `rlx env pack {_options(wanted.extras)} --out FILE`, or leave out --offline",
        )
    if uses_gpu and not wanted.complete():
        driver.check(locked_packages(wanted.extras))
    return lambda environment: _make(path, manifest, found, environment)


def _check_fits(path: Path, manifest: Manifest) -> None:
    """EnvError that names all differences between what the archive is for and what is here."""
    here = Target.here()
    pairs = [
        ("lock", manifest.lock[:SHORT], lockfile.digest()[:SHORT]),
        ("Python", manifest.python, here.python_version),
        ("machine", f"{manifest.system} {manifest.machine}", f"{here.system} {here.machine}"),
    ]
    differing = [f"{what} {theirs} (here {ours})" for what, theirs, ours in pairs if theirs != ours]
    if manifest.glibc and (here.glibc or (0, 0)) < tuple(map(int, manifest.glibc.split("."))):
        have = ".".join(map(str, here.glibc)) if here.glibc else "another C library"
        differing.append(f"glibc {manifest.glibc} or newer (here {have})")
    if differing:
        raise EnvError(
            f"{path} is for {', '.join(differing)}",
            "pack it with the rlx, the Python and for the machine it is to be used with: "
            f"`rlx env pack {_options(manifest.extras)} --out FILE`",
        )


def _compare(path: Path, manifest: Manifest, wanted: Environment) -> Contents:
    """Which of the wanted packages the archive has. EnvError for a wheel that the lock does not know.

    What a source became nobody can foresee, so the word of the archive counts for packages that are locked as a source.
    """
    have = {(wheel.name, wheel.version): wheel for wheel in manifest.wheels}
    found = Contents([], [])
    for file in select(wanted.extras, Target.here()):
        wheel = have.get((file.name, file.version))
        if wheel is None:
            found.lacking.append(file)
        elif (wheel.sha256 if file.is_wheel else wheel.built_from) in file.hashes:
            found.wheels.append(wheel)
        else:
            raise EnvError(f"{path}: {wheel.file} is not the file that the lock names", "pack it again")
    return found


def _make(path: Path, manifest: Manifest, found: Contents, environment: Environment) -> bool:
    """Fill the environment's folder; True, for its byte code is to be compiled.

    The wheels lie in the folder while uv installs them: what a kill leaves goes with it.
    """
    started = time.monotonic()
    ui.talk(f"making the environment {environment.folder}")
    ui.talk(f"  from {len(found.wheels)} wheels of {path} ({ui.size(manifest.n_bytes)})")
    n_unpacked = manifest.n_bytes + sum(wheel.n_installed for wheel in found.wheels)
    preflight.check_free(environment.folder.parent, n_unpacked, "the environment and its wheels", "RLX_ENVS")
    scratch = environment.folder / ".archive"
    _run(environment, "venv", "--allow-existing", "--python", sys.executable, str(environment.folder))
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        with ui.download_progress("unpacking", manifest.n_bytes) as bar:
            archive.extract(
                path, manifest, {w.file for w in found.wheels}, scratch, lambda n, name: bar.advance(n, "unpacking")
            )
        _install(environment, found.wheels, scratch)
    except OSError as problem:
        raise EnvError(
            f"{path} cannot be unpacked in {environment.folder}: {problem.strerror or problem}",
            "free some space, or move environments: RLX_ENVS=/big/disk",
        ) from problem
    shutil.rmtree(scratch)
    if found.lacking:
        ui.talk(f"{len(found.lacking)} packages are not in the archive and come from uv's cache or the network")
        uv.sync(environment.folder, environment.extras, lambda line: ui.talk(f"  {line}"))
    ui.talk(f"environment ready after {time.monotonic() - started:.1f} s")
    return True


def _install(environment: Environment, wheels: list[Wheel], scratch: Path) -> None:
    """Install exactly these wheels; uv checks each one's hash once more."""
    lines = [f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n" for wheel in wheels]
    (scratch / "requirements.txt").write_text("".join(lines), encoding="utf-8")
    from_archive = ["--offline", "--no-index", "--find-links", str(scratch / "wheels"), "--no-build"]
    options = ["--python", str(environment.python), "--require-hashes", "--no-config"]
    _run(environment, "pip", "sync", *options, *from_archive, str(scratch / "requirements.txt"))


def _run(environment: Environment, *words: str) -> None:
    done = subprocess.run(
        [uv.find(), *words],
        env=uv.environ(environment.folder),
        capture_output=True,
        text=True,
        check=False,
        pass_fds=folder_lock.inherited(),
    )
    if done.returncode:
        raise uv.explain(done.stderr, environment.folder)


def _options(extras: tuple[str, ...]) -> str:
    return " ".join(f"--extra {extra}" for extra in extras)
