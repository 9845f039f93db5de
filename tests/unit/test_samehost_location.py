"""Where the same-host socket is, who may take the place, and whom a client believes."""

import os
import socket
import stat
from pathlib import Path

import pytest

from s3verbs.rdma.samehost import location
from s3verbs.rdma.samehost.location import Candidate, bind_socket, candidates, is_this_machine, is_trusted


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def leave_dead_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(path))
        dead.listen()


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_the_places_are_tried_in_the_documented_order() -> None:
    found = candidates(9000, None, {"XDG_RUNTIME_DIR": "/run/user/7"}, uid=7)
    assert [(str(one.path), one.mode) for one in found] == [
        ("/run/user/7/s3verbs/9000.sock", 0o700),
        ("/run/s3verbs/9000.sock", None),
        ("/tmp/s3verbs-7/9000.sock", 0o700),
    ]
    assert [str(one.path) for one in candidates(1, None, {}, uid=7)] == [
        "/run/s3verbs/1.sock",
        "/tmp/s3verbs-7/1.sock",
    ]
    assert candidates(1, None, {}, uid=0)[0].mode == 0o755
    assert candidates(1, None, {"XDG_RUNTIME_DIR": "relative"}, uid=7) == candidates(1, None, {}, uid=7)


def test_a_named_path_is_the_only_place() -> None:
    named = {"S3VERBS_SOCKET": "/a/b.sock", "XDG_RUNTIME_DIR": "/run/user/7"}
    assert candidates(1, None, named) == [Candidate(Path("/a/b.sock"), None)]
    assert candidates(1, "/c", named) == [Candidate(Path("/c"), None)]


def test_a_socket_listens_under_its_name_and_goes_away_with_close(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with bind_socket(1, str(path)) as listener:
        assert listener.path == path
        assert names(tmp_path) == {"s.sock"}
        assert stat.S_IMODE(path.stat().st_mode) == 0o666
        assert connects(path)
    assert names(tmp_path) == set()
    listener.close()


def test_the_first_place_that_can_be_made_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("S3VERBS_SOCKET", raising=False)
    monkeypatch.setattr(location, "SYSTEM_DIRECTORY", tmp_path / "run")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "missing"))
    with bind_socket(9000) as listener:
        assert listener.path == tmp_path / "run" / "9000.sock"
        assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o755
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with bind_socket(9000) as listener:
        assert listener.path == tmp_path / "s3verbs" / "9000.sock"
        assert stat.S_IMODE((tmp_path / "s3verbs").stat().st_mode) == 0o700


def test_a_dead_servers_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    leave_dead_socket(path)
    with bind_socket(1, str(path)):
        assert connects(path)
        assert names(tmp_path) == {"s.sock"}


def test_a_living_servers_socket_is_never_taken(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with bind_socket(1, str(path)) as first:
        before = path.stat().st_ino
        with pytest.raises(OSError, match="another server listens there"):
            bind_socket(1, str(path))
        assert path.stat().st_ino == before
        assert names(tmp_path) == {"s.sock"}
        first.setblocking(True)
        first.accept()[0].close()
        assert connects(path)


def test_a_server_that_took_the_place_meanwhile_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.sock"
    leave_dead_socket(path)
    taken: list[location.SessionListener] = []
    lives = location._lives

    def slow(where: Path) -> bool:
        answer = lives(where)
        if not taken:
            taken.append(None)  # type: ignore[arg-type]
            taken[0] = bind_socket(1, str(path))
        return answer

    monkeypatch.setattr(location, "_lives", slow)
    with pytest.raises(OSError, match="another server listens there"):
        bind_socket(1, str(path))
    assert connects(path)
    assert names(tmp_path) == {"s.sock"}
    # The name was taken away and given back, on the same file; so it is still removed with its listener.
    taken[0].close()
    assert names(tmp_path) == set()


def test_close_leaves_a_successors_socket_alone(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    first = bind_socket(1, str(path))
    path.unlink()
    with bind_socket(1, str(path)):
        first.close()
        assert connects(path)


def test_a_forked_child_does_not_remove_its_parents_socket(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with bind_socket(1, str(path)) as listener:
        child = os.fork()
        if child == 0:
            listener.close()
            os._exit(0)
        os.waitpid(child, 0)
        assert connects(path)


def test_something_else_in_the_place_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    path.write_text("precious")
    with pytest.raises(OSError, match="no socket is there"):
        bind_socket(1, str(path))
    assert path.read_text() == "precious"


def test_no_place_is_told_with_every_reason(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file or directory"):
        bind_socket(1, str(tmp_path / "missing" / "s.sock"))
    with pytest.raises(OSError, match="longer than"):
        bind_socket(1, str(tmp_path / ("x" * 120)))


@pytest.mark.parametrize("planted", ["symlink", "file", "other owner", "writable"])
def test_a_directory_that_another_user_planted_is_not_used(tmp_path: Path, planted: str) -> None:
    directory = tmp_path / "s3verbs-0"
    if planted == "symlink":
        (tmp_path / "elsewhere").mkdir()
        directory.symlink_to(tmp_path / "elsewhere")
    elif planted == "file":
        directory.write_text("")
    else:
        directory.mkdir()
        directory.chmod(0o777 if planted == "writable" else 0o700)
        if planted == "other owner":
            if os.geteuid() != 0:
                pytest.skip("only root can give a directory away")
            os.chown(directory, 65534, 65534)
    with pytest.raises(OSError, match="directory"):
        location._listen(Candidate(directory / "1.sock", 0o700))


def test_only_oneself_root_and_owners_of_directories_are_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    own = Candidate(tmp_path / "own" / "1.sock", 0o700)
    assert is_trusted(own, 1000)
    assert is_trusted(own, 0)
    assert not is_trusted(own, os.getuid() + 7)
    monkeypatch.setattr(location, "SYSTEM_DIRECTORY", tmp_path / "run")
    system, named = Candidate(tmp_path / "run" / "1.sock", None), Candidate(tmp_path / "named" / "x", None)
    for candidate in (system, named):
        assert not is_trusted(candidate, 500)
        candidate.path.parent.mkdir(mode=0o755)
    if os.getuid() == 0:
        for candidate in (system, named):
            os.chown(candidate.path.parent, 500, 500)
            assert is_trusted(candidate, 500)
            assert not is_trusted(candidate, 501)
            candidate.path.parent.chmod(0o775)
            assert not is_trusted(candidate, 500)
        own.path.parent.mkdir()
        os.chown(own.path.parent, 500, 500)
        assert not is_trusted(own, 500)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]", "127.8.9.1"])
def test_this_machine_is_known(host: str) -> None:
    assert is_this_machine(host)


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid", "", "2001:db8::1", "a" * 300])
def test_other_machines_are_not_this_one(host: str) -> None:
    assert not is_this_machine(host)
