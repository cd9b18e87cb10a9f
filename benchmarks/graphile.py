"""Graphile Worker: a job queue in PostgreSQL. No order and no broker: what a fast queue of that kind can do.

Set up as its documentation has it for throughput (24 jobs at a time, a local queue of 500, completions in
batches at once); as many processes as asked for. Its jobs do nothing but count.
"""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.contenders import PAYLOAD, Scene
from benchmarks.installs import version_of

# perfTest/graphile.config.js of its repository.
CONFIG = """
export default {
  worker: {
    connectionString: process.env.DATABASE_URL,
    concurrentJobs: 24, maxPoolSize: 25,
    localQueue: { size: 500, refetchDelay: { durationMs: 10 } },
    completeJobBatchDelay: 0, failJobBatchDelay: 0,
    fileExtensions: [".js"],
  },
};
"""
TASK = """
import { writeFileSync } from "node:fs";
let jobs = 0, first = 0, last = 0;
export default async function publish(payload) {
  last = Date.now();
  if (jobs++ === 0) first = last;
}
process.on("exit", () => writeFileSync(process.env.RESULT, JSON.stringify({ jobs, first, last })));
"""
# Its own way to add many, ten thousand a call.
FILL = f"""
WITH chunks AS (
  SELECT array_agg(json_populate_record(NULL::graphile_worker.job_spec, json_build_object(
    'identifier', 'publish', 'payload', {PAYLOAD}))) AS specs
  FROM generate_series(1, %s) i GROUP BY i / 10000)
SELECT count(*) FROM chunks CROSS JOIN LATERAL graphile_worker.add_jobs(specs)
"""


@dataclass
class Graphile:
    home: Path
    node: Path
    processes: int = 1
    logical = False
    to_kafka = False
    insert = ""

    @property
    def name(self) -> str:
        several = f", {self.processes} processes" if self.processes > 1 else ""
        version = version_of(self.home / "node_modules" / "graphile-worker")
        return f"Graphile Worker {version} (unordered, no broker){several}"

    def prepare(self, scene: Scene) -> None:
        (scene.directory / "graphile.config.mjs").write_text(CONFIG)
        (scene.directory / "package.json").write_text('{"type": "module"}\n')
        (scene.directory / "tasks").mkdir()
        (scene.directory / "tasks" / "publish.js").write_text(TASK)
        done = subprocess.run(
            [*self._argv(scene), "--schema-only"],
            cwd=scene.directory,
            env=os.environ | self._environment(scene, 0),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stderr + done.stdout)

    def fill(self, scene: Scene, events: int) -> range:
        with psycopg.connect(scene.url, autocommit=True) as conn:
            conn.execute(FILL.encode(), [events])
            conn.execute("VACUUM (ANALYZE)")
        return range(1, events + 1)

    def start(self, scene: Scene) -> "list[subprocess.Popen[bytes]]":
        return [
            scene.run([*self._argv(scene), "--once"], f"graphile-{n}", self._environment(scene, n))
            for n in range(self.processes)
        ]

    def results(self, scene: Scene) -> list[dict[str, Any]]:
        """What each process counted, and when it began its first and its last job (time.time())."""
        told = [json.loads(_result(scene, n).read_text()) for n in range(self.processes)]
        return [
            {"jobs": each["jobs"], "first": each["first"] / 1000, "last": each["last"] / 1000}
            for each in told
            if each["jobs"]
        ]

    def left(self, scene: Scene) -> int:
        """Jobs that are still there."""
        with psycopg.connect(scene.url) as conn:
            row = conn.execute("SELECT count(*) FROM graphile_worker._private_jobs").fetchone()
        assert row is not None
        return int(row[0])

    def _argv(self, scene: Scene) -> list[str]:
        program = self.home / "node_modules" / "graphile-worker" / "dist" / "cli.js"
        return [str(self.node), str(program), "--config", str(scene.directory / "graphile.config.mjs")]

    def _environment(self, scene: Scene, number: int) -> dict[str, str]:
        return {
            "DATABASE_URL": scene.url,
            "NO_LOG_SUCCESS": "1",
            "RESULT": str(_result(scene, number)),
        }


def _result(scene: Scene, number: int) -> Path:
    return scene.directory / f"result-{number}.json"
