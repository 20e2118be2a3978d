#!/usr/bin/env python3
"""normload --protocol=http against a real normd: every response is right, in both kinds of loop."""

import json
import pathlib
import subprocess
import tempfile

from served import LIMIT_S, Server, command_line

MIX = ("instance_norm_64:1x64x4x4:float32,group_norm_64_8:2x64x7:float64,"
       "rms_norm_4096:3x4096:float16:priority=high,layer_norm_1024:8x1024:bfloat16:queue_timeout=30s,"
       "rms_norm_4096_float8:2x4096,fused_linear_512:4x512:y=4x512,"
       "layer_norm_1024:2x1024:outputs=y+mean+rstd,instance_norm_64:4x64x64x64")
LOADS = {"a closed loop": ["--concurrency=8", "--requests=2000"],
         "an open loop": ["--rate=200", "--requests=400", "--connections=4"],
         "clients that cancel": ["--concurrency=8", "--requests=1000", "--cancel_share=0.2",
                                 "--cancel_after=1ms", "--max_error_share=0.3"]}


def main():
    options = command_line(__doc__).parse_args()
    with Server(options) as server, tempfile.TemporaryDirectory() as folder:
        for name, load in LOADS.items():
            report = pathlib.Path(folder) / "report.json"
            done = subprocess.run(
                [pathlib.Path(options.normd).with_name("normload"), f"--server={server.address}",
                 "--protocol=http", f"--http={server.http}", f"--mix={MIX}", "--warmup=0s",
                 "--verify", "--verify_every=1", f"--model_repository={options.models}",
                 "--timeout=1m", f"--json={report}", *load],
                capture_output=True, text=True, timeout=4 * LIMIT_S, check=False)
            assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
            result = json.loads(report.read_text())["result"]
            assert result["wrong"] == 0 and result["verified"] > 300, f"{name}: {result['codes']}"
            assert set(result["codes"]) <= {"OK", "CANCELLED"}, f"{name}: {result['codes']}"
            print(f"passed: {name}: {result['codes']}", flush=True)


if __name__ == "__main__":
    main()
