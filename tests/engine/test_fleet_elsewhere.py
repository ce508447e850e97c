"""The same job from a Dask cluster and from a store: what one machine's processes give, byte by byte."""

import os

import pytest

from advisor.engine.fleet import reduced
from advisor.engine.reduce import Judging
from advisor.errors import UsageError
from advisor.sources import read
from tests.engine.test_fleet import BARE, JOB, packed


def test_a_dask_cluster_gives_the_same(monkeypatch):
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
        address = cluster.scheduler_address.replace("tcp://", "dask://")
        made = packed(reduced(read(JOB), BARE, executor=address))
    assert made == packed(reduced(read(JOB), BARE, executor="serial"))


def test_a_scheduler_that_is_not_there_is_said(monkeypatch):
    pytest.importorskip("distributed")
    import dask

    with dask.config.set({"distributed.comm.timeouts.connect": "100ms"}), pytest.raises(UsageError, match="no Dask scheduler answers"):
        reduced(read(JOB), Judging(rules=()), executor="dask://127.0.0.1:9")


@pytest.fixture
def bucket(monkeypatch):
    """A bucket with a job in it, of a server that speaks S3."""
    server_of = pytest.importorskip("moto.server")
    s3fs = pytest.importorskip("s3fs")
    server = server_of.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    store = s3fs.S3FileSystem()
    store.mkdir("ranks")  # a name of its own: all servers of a process hold the same buckets
    for name in os.listdir(JOB):
        store.put(str(JOB / name), f"ranks/run/{name}")
    yield "s3://ranks/run"
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


def test_a_store_gives_the_same_as_its_files_by_directory_and_by_pattern(bucket):
    whole = packed(reduced(read(JOB), BARE, executor="serial"))
    assert packed(reduced(read(bucket), BARE, workers=2)) == whole
    assert packed(reduced(read(f"{bucket}/*.trace.zst"), BARE, executor="serial")) == whole
