"""enwik8 and text8, of 100,000,000 bytes each: downloaded once, checked, kept; or a local file,
`enwik8:FILE`.

The split is the usual 90 / 5 / 5 million; the thesis's is `--split 95000000/1000000/4000000`.
"""

from pathlib import Path

from rnnewton.text.errors import UserError
from rnnewton.text.reading import Piece, unreadable
from rnnewton.text.sources import Source

_BYTES = 100_000_000
_SPLIT = "90000000/5000000/5000000"
_SHA256 = {  # of the zip files
    "enwik8": "547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
    "text8": "a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
}


def source(name: str, path: Path | None) -> Source:
    """The local file, or the downloaded one."""
    file = path if path is not None else _download(name)
    try:
        size = file.stat().st_size
    except (OSError, ValueError) as error:
        raise unreadable(str(file), error) from error
    if not file.is_file():
        raise UserError(f"{name}:{file} is not a file: give the unpacked {name}")
    if size == _BYTES:
        return Source(name, ((Piece(file),),), _SPLIT)
    note = f"{file.name} has {size:,} bytes and the whole {name} has {_BYTES:,}"
    return Source(name, ((Piece(file),),), note=note)


def _download(name: str) -> Path:
    import pooch

    url = f"https://mattmahoney.net/dc/{name}.zip"
    try:
        files = pooch.retrieve(
            url,
            known_hash=f"sha256:{_SHA256[name]}",
            path=pooch.os_cache("rnnewton"),
            processor=pooch.Unzip([name]),
        )
    except Exception as error:  # a download fails in as many ways as there are libraries below it
        raise UserError(
            f"{name} could not be downloaded from {url} ({error}): fetch and unpack it yourself and give"
            f" {name}:FILE"
        ) from error
    return Path(files[0])
