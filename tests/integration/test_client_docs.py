"""What docs/client.md and the README show is run, block after block, as a reader would."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.endpoint import ACCESS_KEY, ROOT, SECRET_KEY, Endpoint, environment


@pytest.mark.parametrize("page", ["docs/client.md", "README.md"])
def test_the_examples_run(page: str, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    with Endpoint(tmp_path / "data", bucket="kvcache:relaxed") as endpoint:
        script = "\n".join(blocks).replace("http://127.0.0.1:9000", f"http://127.0.0.1:{endpoint.port}")
        script = script.replace('"YOUR_ACCESS_KEY"', repr(ACCESS_KEY)).replace('"YOUR_SECRET_KEY"', repr(SECRET_KEY))
        script = script.replace('access_key="..."', f"access_key={ACCESS_KEY!r}")
        script = script.replace('secret_key="..."', f"secret_key={SECRET_KEY!r}")
        result = subprocess.run(
            [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, timeout=120
        )
    assert result.returncode == 0, result.stderr
    print(result.stdout)
    assert "samehost" in result.stdout
