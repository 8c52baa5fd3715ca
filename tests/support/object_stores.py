"""Object stores on this machine: moto's S3, and an emulator of Google Cloud Storage."""

import json
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

BUCKET = "checkpoints"


@dataclass(frozen=True)
class ObjectServer:
    """`variables`: what a process must have in its environment to reach the store by `url`."""

    url: str
    variables: Mapping[str, str]
    stop: Callable[[], None]
    """Ends it; may be called twice."""

    @contextmanager
    def reached(self) -> Iterator[None]:
        """This process reaches it."""
        import fsspec
        from fsspec.config import conf, set_conf_env

        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.variables.items():
                patch.setenv(name, value)
            set_conf_env(conf)  # fsspec reads its variables when it is imported
            kind = fsspec.get_filesystem_class(self.url.partition(":")[0])
            kind.clear_instance_cache()
            yield
            kind.clear_instance_cache()


@contextmanager
def s3() -> Iterator[ObjectServer]:
    """A server that lives in this process."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT"), timeout=30).close()
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
    variables = {**keys, "AWS_ENDPOINT_URL": endpoint, "AWS_EC2_METADATA_DISABLED": "true"}
    try:
        yield ObjectServer(f"s3://{BUCKET}", variables, server.stop)
    finally:
        server.stop()


@contextmanager
def gcs() -> Iterator[ObjectServer]:
    """The same of Google's protocol. Its gRPC interface, which gcsfs would ask for the kind of bucket, is not there."""
    from gcp_storage_emulator.server import create_server

    server = create_server("127.0.0.1", 0, in_memory=True, default_bucket=BUCKET)
    server.start()
    endpoint = f"http://127.0.0.1:{server._api._httpd.server_port}"
    plain = {"FSSPEC_GS_TOKEN": "anon", "FSSPEC_GS_PROJECT": "test", "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}
    try:
        yield ObjectServer(f"gs://{BUCKET}", {**plain, "STORAGE_EMULATOR_HOST": endpoint}, server.stop)
    finally:
        server.stop()


GOOGLE_REFUSES = (
    "me@example.com does not have storage.objects.list access to the Google Cloud Storage bucket. Permission "
    "'storage.objects.list' denied on resource (or it may not exist)."
)
"""Word for word what Google says of a bucket that these credentials may not see."""


@contextmanager
def refusing(protocol: str, status: int) -> Iterator[ObjectServer]:
    """A store that answers every request with this HTTP status, as one that refuses the credentials."""
    google = json.dumps({"error": {"code": status, "message": GOOGLE_REFUSES}})
    amazon = "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
    body = (google if protocol == "gs" else amazon).encode()

    class Refuses(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_HEAD = do_PUT = do_POST = answer

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Refuses)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    variables = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_ENDPOINT_URL": endpoint}
    if protocol == "gs":
        plain = {"FSSPEC_GS_TOKEN": "anon", "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}
        variables = {**plain, "STORAGE_EMULATOR_HOST": endpoint}
    try:
        yield ObjectServer(f"{protocol}://bucket", variables, server.shutdown)
    finally:
        server.shutdown()
        server.server_close()
