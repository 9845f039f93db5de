"""The files under deploy/ use settings and flags that exist."""

import re
from pathlib import Path

from s3verbs.gateway import config

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"


def test_the_settings_file_of_the_systemd_unit_loads() -> None:
    settings = config.load(DEPLOY / "systemd" / "s3verbs.toml", {}, {}).settings
    assert [bucket.name for bucket in settings.buckets] == ["kvcache"]
    assert settings.access_log == "stdout"


def test_the_kubernetes_arguments_are_flags_of_serve() -> None:
    arguments = re.search(r"args: \[serve, (.*)\]", (DEPLOY / "kubernetes" / "s3verbs.yaml").read_text())
    assert arguments is not None
    words = [word.strip().strip('"') for word in arguments[1].split(",")]
    flags = dict(zip(words[::2], words[1::2], strict=True))
    known = {config.flag_of(name): name for name in config.Settings.__dataclass_fields__}
    loaded = config.load(None, {}, {known[flag]: [value] if flag in MANY else value for flag, value in flags.items()})
    assert str(loaded.settings.data[0]) == "/data"
    assert loaded.settings.metrics_listen is not None


MANY = {"--data", "--listen", "--bucket"}
