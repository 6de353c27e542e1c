"""The loopback Hub with what ``docs/scale.md`` asks of the real one: buckets, Jobs, webhooks, schedules.

It answers as the Hub is documented to, and refuses what it does not know. Jobs run one after another as processes of
this machine, with the recorded environment and with the files of a bucket in place of its volume. Content goes through
hf-xet into a folder, not over its network protocol; that store is for one process at a time.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tests.loopback.commits import RefusedError
from tests.loopback.handler import FullHandler
from tests.loopback.hub import FullHub
from tests.loopback.lists import new_collection

FLAVORS = ("cpu-basic", "cpu-upgrade")
_SPEC = {
    *("command", "arguments", "environment", "flavor", "dockerImage"),
    *("secrets", "timeoutSeconds", "attempts", "labels", "volumes"),
}
_ID = r"([\w.-]+/[\w.-]+)"

PIP = """#!{python}
import pathlib, sys, zipfile
fails_once, arguments = pathlib.Path(__file__).with_name("fails-once"), sys.argv[1:]
if fails_once.exists():
    fails_once.unlink()
    sys.exit("no package index answers")
if arguments[0] == "wheel":
    place = pathlib.Path(arguments[arguments.index("-w") + 1]) / "mdir_hf-0-py3-none-any.whl"
    with zipfile.ZipFile(place, "w") as wheel:
        wheel.writestr("mdir_hf-0.dist-info/METADATA", "Name: mdir-hf")
for wanted in arguments[1:] if arguments[0] == "install" else ():
    if wanted not in ("-q", "huggingface_hub"):
        zipfile.ZipFile(wanted).read("mdir_hf-0.dist-info/METADATA")
"""
"""Instead of pip: the installed packages are used, and a wheel has to be where the recipe looks for it."""


EXTRAS = ("Bio", "gguf", "matplotlib", "transformers")
"""What is not there: the recipes install the package alone."""


@dataclass
class Bucket:
    """A bucket: path -> (hash, bytes, time of change in ms)."""

    private: bool
    files: dict[str, tuple[str, int, int]] = field(default_factory=dict)


@dataclass
class Job:
    """A Job as it was asked for, and what became of it; ``attempts`` holds the output of each."""

    id: str
    spec: dict[str, Any]
    started_by: dict[str, str] = field(default_factory=dict)
    stage: str = "SCHEDULING"
    attempts: list[str] = field(default_factory=list)

    def answer(self) -> dict[str, Any]:
        """What the Hub says of it; secrets by name only."""
        return {
            **{key: value for key, value in self.spec.items() if key in _SPEC - {"timeoutSeconds", "attempts"}},
            "id": self.id,
            "createdAt": "2026-11-22T00:00:00.000Z",
            "secrets": sorted(self.spec.get("secrets", {})),
            "owner": {"id": "0" * 24, "name": "me", "type": "user"},
            "status": {"stage": self.stage, "message": None},
        }


class JobsHub(FullHub):
    """The loopback Hub of the user ``me``.

    Args:
        disk: Where Jobs run, and where hf-xet keeps content.

    Attributes:
        has_bad_start: Let pip fail in the next attempt of a Job.
    """

    def __init__(self, disk: Path) -> None:
        super().__init__()
        self.buckets: dict[str, Bucket] = {}
        self.jobs: dict[str, Job] = {}
        self.webhooks: list[dict[str, Any]] = []
        self.schedules: list[dict[str, Any]] = []
        self.has_bad_start = False
        self.disk = disk
        self.cas = disk / "cas"
        self.programs = disk / "programs"
        self.programs.mkdir(parents=True)
        pip = self.programs / "pip"
        pip.write_text(PIP.format(python=sys.executable))
        pip.chmod(0o755)
        self.absent = disk / "absent"
        self.absent.mkdir()
        (self.absent / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({EXTRAS}))\n")
        self._machine = ThreadPoolExecutor(1)

    def environment(self, home: Path) -> dict[str, str]:
        """A shell that sees this Hub, and nothing of its user."""
        home.mkdir(parents=True, exist_ok=True)
        return {
            "PATH": f"{self.programs}:{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": str(home),
            "HF_HOME": str(home / ".hf"),
            "HF_ENDPOINT": self.endpoint,
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(self.absent),
        }

    def list_under(self, slug: str, *models: str) -> None:
        """Serve a collection whose slug is known beforehand."""
        self._collections[slug] = replace(new_collection("me", "Bases", models, private=False), slug=slug)

    def start(self, spec: dict[str, Any], **started_by: str) -> Job:
        """Queue a Job."""
        if unknown := set(spec) - _SPEC:
            raise RefusedError(400, "", f"unknown: {sorted(unknown)}")
        if spec["flavor"] not in FLAVORS or not all(isinstance(part, str) for part in spec["command"]):
            raise RefusedError(400, "", "no such flavor, or no command")
        if not re.fullmatch(r"[a-zA-Z0-9._-]*", spec.get("labels", {}).get("name", "")):
            raise RefusedError(400, "", "no name of a Job")
        for volume in spec.get("volumes", ()):
            if volume["type"] != "bucket" or volume["source"] not in self.buckets:
                raise RefusedError(404, "", f"no such bucket: {volume}")
        job = Job(f"{len(self.jobs) + 1:024x}", spec, started_by)
        self.jobs[job.id] = job
        self._machine.submit(self._run, job)
        return job

    def deliver(self, repo_id: str, *, kind: str = "model", **event: Any) -> list[Job]:
        """Tell every webhook that watches the owner of a repository, and return what they started when it is done.

        A webhook's Job has the image, command, environment, flavor and time of its source: no volumes, no secrets.
        """
        started = []
        for webhook in self.webhooks:
            if {"type": "org", "name": repo_id.split("/")[0]} in webhook["watched"] and "repo" in webhook["domains"]:
                payload = {"event": {"action": "update", "scope": "repo.content"}, "webhook": {"id": webhook["id"]}}
                payload |= {"repo": {"type": kind, "name": repo_id}, **event}
                source = self.jobs[webhook["jobSourceId"]].spec
                spec = {key: value for key, value in source.items() if key not in ("volumes", "secrets", "attempts")}
                told = {"WEBHOOK_PAYLOAD": json.dumps(payload), "WEBHOOK_REPO_ID": repo_id, "WEBHOOK_REPO_TYPE": kind}
                started.append(self.start({**spec, "secrets": webhook.get("secrets", {})}, **told))
        self.wait()
        return started

    def wait(self) -> None:
        """Until the Jobs asked for so far have ended."""
        self._machine.submit(bool).result()

    def _run(self, job: Job) -> None:
        try:
            job.stage = "RUNNING"
            for _ in range(job.spec.get("attempts", 1)):
                if self._attempt(job) == 0:
                    job.stage = "COMPLETED"
                    return
        except Exception as exc:  # a fault of this server; whoever waits must not wait for ever
            job.attempts.append(repr(exc))
            raise
        finally:
            job.stage = "COMPLETED" if job.stage == "COMPLETED" else "ERROR"

    def _attempt(self, job: Job) -> int:
        if self.has_bad_start:
            self.has_bad_start = False
            (self.programs / "fails-once").touch()
        disk = self.disk / f"job-{job.id}-{len(job.attempts)}"
        environment = self.environment(disk) | {"JOB_ID": job.id, "ACCELERATOR": "none", "CPU_CORES": "1"}
        environment |= job.spec["environment"] | job.spec.get("secrets", {}) | job.started_by
        command = job.spec["command"]
        for number, volume in enumerate(job.spec.get("volumes", ())):
            mounted = self.disk / f"volume-{job.id}-{len(job.attempts)}-{number}"
            self.download(volume["source"], mounted)
            command = [re.sub(rf"(?<![\w/]){volume['mountPath']}(?=/)", str(mounted), part) for part in command]
        with (disk / "output").open("w+") as output:
            process = subprocess.Popen(
                command, cwd=disk, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                process.wait(job.spec.get("timeoutSeconds", 1800))
            finally:
                with contextlib.suppress(ProcessLookupError):  # what it left in the background ends with the container
                    os.killpg(process.pid, signal.SIGKILL)
            output.seek(0)
            job.attempts.append(output.read())
        return process.returncode

    def download(self, bucket: str, folder: Path) -> None:
        """Get the files of a bucket, with the real client."""
        environment = self.environment(self.disk / "owner") | {"HF_TOKEN": self.token}
        command = ["hf", "buckets", "sync", f"hf://buckets/{bucket}", str(folder)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


class JobsHandler(FullHandler):
    """Answers what the loopback Hub does not know."""

    def _serve_hub(self) -> None:
        path = self._path
        if path == "/api/whoami-v2" and self._token() == "owner":
            self._json({"type": "user", "id": "0" * 24, "name": "me", "orgs": [], "auth": {"type": "access_token"}})
        elif match := re.fullmatch(rf"(?:/api)?/buckets/{_ID}(?:/(.*))?", path):
            try:
                self._bucket(match[1], match[2] or "")
            except RefusedError as refusal:
                self._error(refusal.status, refusal.code, refusal.message)
        elif self.command == "GET" and (match := re.fullmatch(r"/api/jobs/me/(\w+)", path)) and match[1] in self.jobs:
            self._json(self.jobs[match[1]].answer())
        else:
            super()._serve_hub()

    @property
    def jobs(self) -> dict[str, Job]:
        return self._hub.jobs

    def _bucket(self, name: str, rest: str) -> None:
        if self._token() != "owner":
            raise RefusedError(401, "", "Invalid username or password.")
        writes = self.command == "POST" or rest == "xet-write-token"
        if writes and not self._may_write():
            raise RefusedError(403, "", "Forbidden: you must use a write token to access this resource.")
        bucket = self._hub.buckets.get(name)
        if self.command == "POST" and not rest:
            if bucket is not None:
                raise RefusedError(409, "", "You already created this bucket repo")
            self._hub.buckets[name] = Bucket(json.loads(self._posted).get("visibility") == "private")
            self._json({"url": f"{self._hub.endpoint}/buckets/{name}"})
            return
        if bucket is None:
            raise RefusedError(404, "RepoNotFound", "Repository not found")
        if rest.startswith("tree"):
            prefix = unquote(rest.removeprefix("tree").removeprefix("/"))
            self._json([_listed(path, *known) for path, known in bucket.files.items() if path.startswith(prefix)])
        elif re.fullmatch("xet-(read|write)-token", rest):
            self._json({"casUrl": f"local://{self._hub.cas}", "accessToken": "xet", "exp": int(time.time()) + 3600})
        elif rest == "batch" and self.headers.get("Content-Type") == "application/x-ndjson":
            self._batch(bucket)
        elif rest.startswith("resolve/") and unquote(rest.removeprefix("resolve/")) in bucket.files:
            xet_hash, n_bytes, _ = bucket.files[unquote(rest.removeprefix("resolve/"))]
            route = f"{self._hub.endpoint}/api/buckets/{name}/xet-read-token"
            said = {"X-Xet-Hash": xet_hash, "X-Xet-Refresh-Route": route, "X-Linked-Size": str(n_bytes)}
            self._answer(200, b"", said)
        elif not rest:
            total = sum(n_bytes for _, n_bytes, _ in bucket.files.values())
            about = {"id": name, "private": bucket.private, "createdAt": "2026-11-22T00:00:00.000Z", "size": total}
            self._json({**about, "totalFiles": len(bucket.files)})
        else:
            raise RefusedError(404, "", "Not found")

    def _batch(self, bucket: Bucket) -> None:
        operations = [json.loads(line) for line in self._posted.splitlines()]
        sizes = stored_sizes(self._hub.cas)
        for operation in operations:
            if operation["type"] != "addFile" or operation["xetHash"] not in sizes:
                raise RefusedError(400, "", f"cannot do {operation}")
            xet_hash = operation["xetHash"]
            bucket.files[operation["path"]] = (xet_hash, sizes[xet_hash], operation["mtime"])
        self._json({"success": True, "processed": len(operations), "succeeded": len(operations), "failed": []})

    def _serve_post(self) -> None:
        path = self._path
        merge = re.fullmatch(rf"/api/(datasets/{_ID})/discussions/(\d+)/merge", path)
        ours = ("/api/jobs/me", "/api/scheduled-jobs/me", "/api/settings/webhooks", "/api/repos/create")
        if path not in ours and not merge:
            super()._serve_post()
            return
        if self._token() != "owner":
            raise RefusedError(401, "", "Invalid username or password.")
        if not self._may_write():
            raise RefusedError(403, "", "Forbidden: you must use a write token to access this resource.")
        body = json.loads(self._posted) if self._posted else {}
        if merge:
            self._json({"oid": self._hub.merge(merge[1], int(merge[3]))})
        elif path == "/api/jobs/me":
            self._json(self._hub.start(body).answer())
        elif path == "/api/repos/create":
            self._json(self._create(body))
        elif path == "/api/settings/webhooks":
            self._json({"webhook": self._watch(body)})
        else:
            self._hub.schedules.append(body)
            about = Job("f" * 24, body["jobSpec"]).answer()
            self._json({"id": about["id"], "owner": about["owner"], "schedule": body["schedule"], "jobSpec": about})

    def _create(self, body: dict[str, Any]) -> dict[str, str]:
        kind, name = body["type"], f"{body['organization']}/{body['name']}"
        if kind != "dataset" or body["organization"] != "me" or self._hub.find(f"datasets/{name}"):
            raise RefusedError(409, "", "You already created this dataset repo")
        folder = self._hub.disk / "created" / body["name"]
        folder.mkdir(parents=True)
        (folder / ".gitattributes").write_text("*.safetensors filter=lfs diff=lfs merge=lfs -text\n")
        self._hub.add_repository(name, folder, kind="dataset", private=body.get("visibility") == "private")
        return {"url": f"{self._hub.endpoint}/datasets/{name}", "name": name, "id": "0" * 24}

    def _watch(self, body: dict[str, Any]) -> dict[str, Any]:
        if set(body) - {"jobSourceId", "watched", "domains", "secrets"} or body["jobSourceId"] not in self.jobs:
            raise RefusedError(400, "", "no such Job")
        webhook = {**body, "id": f"{len(self._hub.webhooks) + 1:024x}"}
        self._hub.webhooks.append(webhook)
        source = self.jobs[body["jobSourceId"]].answer()
        return {**webhook, "disabled": False, "job": source, "secrets": sorted(body.get("secrets", {}))}


JobsHub.handler = JobsHandler


def stored_sizes(cas: Path) -> dict[str, int]:
    """Bytes of every file in hf-xet's folder store, by hash: the file sections of its shards, as Xet specifies them."""
    sizes = {}
    for shard in cas.glob("xet/xorbs/shards/*.mdb"):
        content, at = shard.read_bytes(), 48
        while content[at : at + 32] != b"\xff" * 32:
            flags, n_terms = struct.unpack_from("<II", content, at + 32)
            name = "".join(f"{word:016x}" for word in struct.unpack_from("<4Q", content, at))
            sizes[name] = sum(
                struct.unpack_from("<I", content, at + 48 * term + 36)[0] for term in range(1, n_terms + 1)
            )
            at += 48 * (1 + n_terms * (2 if flags & 1 << 31 else 1) + bool(flags & 1 << 30))
    return sizes


def _listed(path: str, xet_hash: str, n_bytes: int, mtime_ms: int) -> dict[str, Any]:
    changed = datetime.fromtimestamp(mtime_ms / 1000, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {"type": "file", "path": path, "size": n_bytes, "xetHash": xet_hash, "mtime": changed}
