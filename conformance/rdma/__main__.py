"""`python -m conformance rdma`: the RDMA-for-S3 contract against one endpoint.

Exit status: 0 when no case failed, 1 when one did, 2 when the run could not be made.
"""

import argparse
import http.client
import json
import secrets
import sys
from collections.abc import Callable
from pathlib import Path

from conformance.rdma import offers as asking
from conformance.rdma import profiles, report
from conformance.rdma.lanes import Lane, LaneUnavailable
from conformance.rdma.offers import SPOKEN, Offers
from conformance.rdma.runner import Runner
from conformance.rdma.trial import DIALECTS
from conformance.rdma.wire import Server

_TRANSPORTS = ("samehost", "rc")


class _Unusable(Exception):
    """The run cannot be made; the text says what to change."""


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="conformance rdma", description=__doc__.partition("\n")[0])
    parser.add_argument("--endpoint", required=True, help="http://HOST:PORT")
    parser.add_argument("--access-key", required=True)
    parser.add_argument("--secret-key", required=True)
    parser.add_argument("--region", default="us-east-1")
    parser.add_argument("--bucket", default="", help="an existing bucket (default: one is made and deleted)")
    parser.add_argument("--profile", default="", help="known deviations: a name or a JSON file")
    parser.add_argument("--json", type=Path, default=None, help="also write every result here")
    parser.add_argument(
        "--transport",
        default="auto",
        help=f"of {', '.join(_TRANSPORTS)}, several by comma: these must move bytes. auto: whatever does; none: none",
    )
    parser.add_argument(
        "--dialect",
        default="auto",
        help=f"of {', '.join(each.name for each in DIALECTS)}, several by comma: these must be spoken",
    )
    parser.add_argument("--socket", default="", help="the server's UNIX socket for the same-host transport")
    parser.add_argument("--rdma-address", default="", help="the RoCE address for RC (default: the first device's)")
    parser.add_argument("--select", default="", help="only cases whose name contains this")
    parser.add_argument("--quiet", action="store_true", help="print only the cases that failed")
    parser.add_argument("--insecure", action="store_true", help="do not verify the server's certificate")
    return parser.parse_args(arguments)


def open_lane(name: str, server: Server, options: argparse.Namespace) -> Lane:
    """Raises LaneUnavailable."""
    if name == "samehost":
        from conformance.rdma.samehost import SameHostLane

        return SameHostLane(server.host, server.port, options.socket)
    from conformance.rdma.rc import RcLane

    return RcLane(options.rdma_address)


def _named(text: str, known: tuple[str, ...], option: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise _Unusable(f"{option}: {', '.join(unknown)} is none of {', '.join(known)}")
    return names


class _Bucket:
    """The bucket of the run; one that was made for it is deleted. Every key begins with `prefix`."""

    def __init__(self, server: Server, name: str) -> None:
        self._server = server
        self._made = not name
        token = secrets.token_hex(8)
        self.name = name or f"rdma-conformance-{token}"
        self.prefix = f"rdma-conformance-{token}/"

    def __enter__(self) -> "_Bucket":
        method, path = ("PUT" if self._made else "HEAD"), f"/{self.name}"
        answer = self._server.send(method, path)
        if answer.status != 200:
            raise _Unusable(f"{method} {path} on {self._server.endpoint} was answered {answer}")
        return self

    def __exit__(self, *_: object) -> None:
        if self._made:
            self._server.send("DELETE", f"/{self.name}")


def _ask(server: Server, bucket: _Bucket, options: argparse.Namespace, lanes: list[Lane]) -> tuple[Offers, list[Lane]]:
    """What the server offers, and the lanes that move bytes. Every lane that was opened is added to `lanes`.

    What the command line names is tested whether it is offered or not, so that it fails where it is not.
    """
    offers = Offers(asking.dialects(server, bucket.name, bucket.prefix))
    offers.demanded = _named(options.dialect.replace("auto", ""), tuple(each.name for each in DIALECTS), "--dialect")
    if not offers.demanded and SPOKEN not in offers.dialects.values():
        offers.demanded = [each.name for each in DIALECTS]
    offers.extensions = asking.extensions(server, bucket.name, bucket.prefix)
    usable = []
    wanted = {"auto": list(_TRANSPORTS), "none": []}.get(options.transport)
    demanded = wanted is None
    for name in wanted if wanted is not None else _named(options.transport, _TRANSPORTS, "--transport"):
        try:
            lanes.append(open_lane(name, server, options))
        except LaneUnavailable as reason:
            if demanded:
                raise _Unusable(f"transport {name}: {reason}") from reason
            offers.transports[name] = f"not tried: {reason}"
            continue
        seen = asking.moves(server, bucket.name, bucket.prefix, lanes[-1])
        offers.transports[name] = seen
        if seen == SPOKEN or demanded:
            usable.append(lanes[-1])
    offers.transports["dc"] = "not tried: this tool has no DC target"
    return offers, usable


def run(options: argparse.Namespace, say: Callable[[str], None] = print) -> int:
    server = Server(
        options.endpoint.rstrip("/"), options.access_key, options.secret_key, options.region, not options.insecure
    )
    lanes: list[Lane] = []
    try:
        profile = profiles.load(options.profile) if options.profile else profiles.Profile()
        with _Bucket(server, options.bucket) as bucket:
            offers, usable = _ask(server, bucket, options, lanes)
            say(f"RDMA for S3 at {server.endpoint}, bucket {bucket.name}")
            for line in report.offers_text(offers):
                say(line)
            runner = Runner(server, bucket.name, bucket.prefix, offers, usable, profile)
            results = list(runner.run(options.select))
    except (_Unusable, ValueError, OSError, http.client.HTTPException) as error:
        print(f"conformance rdma: {error}", file=sys.stderr)
        return 2
    finally:
        for lane in lanes:
            lane.close()
    for line in report.as_lines(results, quiet=options.quiet):
        say(line)
    say(report.summary(results))
    if options.json:
        options.json.write_text(json.dumps(report.as_json(server.endpoint, offers, results), indent=1))
    return 1 if any(result.outcome is report.Outcome.FAILED for result in results) else 0


def main(arguments: list[str]) -> int:
    return run(parse(arguments))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
