import errno
import os

import pytest

from laval.files import atomic_folder, atomic_write, recover_folder


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def full_disk(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_write_makes_folders_and_replaces(tmp_path):
    path = tmp_path / "a" / "b.txt"
    for text in ("one", "two é"):
        with atomic_write(path, "w") as file:
            file.write(text)
    assert path.read_text(encoding="utf-8") == "two é" and names(path.parent) == ["b.txt"]


def test_old_file_is_seen_until_the_block_ends(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"old")
    with atomic_write(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_leaves_the_old_file_alone(tmp_path, error):
    path = tmp_path / "f"
    path.write_bytes(b"old")
    with pytest.raises(error), atomic_write(path) as file:
        file.write(b"half")
        raise error
    assert path.read_bytes() == b"old" and names(tmp_path) == ["f"]


def test_full_disk_names_path_bytes_and_way_out(tmp_path, monkeypatch):
    path = tmp_path / "f"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError) as caught, atomic_write(path, bytes_needed=123456) as file:
        file.write(b"new")
    assert caught.value.errno == errno.ENOSPC
    assert all(part in str(caught.value) for part in (str(path), "123,456", "intact", "Free some space"))
    assert path.read_bytes() == b"old" and names(tmp_path) == ["f"]


def test_full_disk_told_only_by_text(tmp_path):
    with pytest.raises(OSError, match="nothing was written"), atomic_write(tmp_path / "f"):
        raise RuntimeError("I/O error: No space left on device (os error 28)")
    assert names(tmp_path) == []


def test_other_os_errors_pass_unchanged(tmp_path):
    with pytest.raises(PermissionError, match="^no$"), atomic_write(tmp_path / "f"):
        raise PermissionError("no")


def test_permissions_follow_umask_then_the_old_file(tmp_path):
    plain, path = tmp_path / "plain", tmp_path / "f"
    plain.write_bytes(b"")
    with atomic_write(path) as file:
        file.write(b"1")
    assert path.stat().st_mode == plain.stat().st_mode
    path.chmod(0o640)
    with atomic_write(path) as file:
        file.write(b"2")
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_link_is_written_through(tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    with atomic_write(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "real").read_bytes() == b"new" and (tmp_path / "link").is_symlink()


def test_a_writer_may_use_the_name(tmp_path):
    with atomic_write(tmp_path / "f") as file:
        os.unlink(file.name)
        with open(file.name, "wb") as other:
            other.write(b"by name")
    assert (tmp_path / "f").read_bytes() == b"by name"


def folder(tmp_path):
    path = tmp_path / "run"
    (path / "notes").mkdir(parents=True)
    (path / "model.safetensors").write_bytes(b"old")
    (path / "shard-1.safetensors").write_bytes(b"old")
    (path / "notes" / "mine.txt").write_text("keep me")
    return path


def test_folder_swaps_keeps_and_discards(tmp_path):
    path = folder(tmp_path)
    with atomic_folder(path, discard=("*.safetensors",)) as new:
        (new / "model.safetensors").write_bytes(b"new")
        assert (path / "model.safetensors").read_bytes() == b"old"
    assert (path / "model.safetensors").read_bytes() == b"new"
    assert (path / "notes" / "mine.txt").read_text() == "keep me"
    assert names(path) == ["model.safetensors", "notes"] and names(tmp_path) == ["run"]


@pytest.mark.parametrize("where", ["block", "sync", "second rename"])
def test_folder_failure_leaves_the_old_one_alone(tmp_path, monkeypatch, where):
    path, rename = folder(tmp_path), os.replace
    if where == "sync":
        monkeypatch.setattr(os, "fsync", full_disk)
    if where == "second rename":
        monkeypatch.setattr(os, "replace", lambda a, b: full_disk() if str(a).endswith(".tmp") else rename(a, b))
    with pytest.raises(OSError, match="intact"), atomic_folder(path) as new:
        (new / "model.safetensors").write_bytes(b"new")
        if where == "block":
            full_disk()
    assert (path / "model.safetensors").read_bytes() == b"old" and names(tmp_path) == ["run"]


def test_recover_after_a_stop_between_the_renames(tmp_path):
    path = folder(tmp_path)
    path.rename(tmp_path / ".run.old")
    assert recover_folder(path) and (path / "model.safetensors").read_bytes() == b"old"
    (tmp_path / ".run.old").mkdir()
    assert not recover_folder(path) and names(tmp_path) == ["run"]


def test_folder_refuses_a_file_and_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "f").write_bytes(b"")
    with pytest.raises(ValueError, match="found a file"), atomic_folder(tmp_path / "f"):
        pass
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="current folder"), atomic_folder("."):
        pass
