"""trainer.checkpoint_url: what is taken, what it brings along, and veRL's name for it."""

import pytest

from verl_core.config.compose import resolve
from verl_core.config.effective import extras
from verl_core.config.errors import ConfigError
from verl_core.config.urls import checkpoints_url


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("runs", "expected a URL such as s3://bucket/folder"),
        ("file:///tmp/x", "a folder of this machine is trainer.default_local_dir"),
        ("s3://", "expected a URL with a bucket"),
        ("s3://bucket/x?versionId=1", "without [?] or #"),
        ("s3://key:secret@bucket/x", "credentials do not belong in a URL"),
        ("s3://key:my/secret@bucket/x", "credentials do not belong in a URL"),
    ],
)
def test_what_is_no_folder_of_an_object_store(url, said):
    with pytest.raises(ConfigError, match=said) as refused:
        resolve("smoke", [f"trainer.checkpoint_url={url}"])
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "extra"),
    [
        ("s3://bucket/x", "s3"),
        ("gs://bucket", "gcs"),
        ("abfs://c@account.dfs.core.windows.net/x", None),
        ("hdfs://me@host:9000/x@y", None),
    ],
)
def test_a_url_brings_its_packages_along(url, extra):
    config = resolve("smoke", [f"trainer.checkpoint_url={url}/"]).config
    assert set(extras(config)) == {"fsdp", extra} - {None}
    config.trainer.experiment_name = "one"
    assert checkpoints_url(config.trainer) == f"{url}/smoke/one"


def test_verls_name_is_read():
    resolved = resolve("smoke", ["trainer.default_hdfs_dir=s3://bucket/x"])
    assert resolved.config.trainer.checkpoint_url == "s3://bucket/x"
    assert any("trainer.checkpoint_url" in note for note in resolved.notes)


def test_a_run_that_never_saves_has_no_use_for_it():
    resolved = resolve("smoke", ["trainer.checkpoint_url=s3://bucket/x", "trainer.save_freq=0"])
    assert any("trainer.checkpoint_url" in text for text in resolved.warnings)
