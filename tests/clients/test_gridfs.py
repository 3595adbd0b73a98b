"""Files in GridFS: many sizes, listing, versions, deleting, streams."""

import hashlib
import io
import random
import unittest

import gridfs
from gridfs.errors import FileExists

from server import Program

CHUNK = 255 * 1024


def content(size: int) -> bytes:
    return random.Random(size).randbytes(size)


class Files(Program):
    def setUp(self):
        super().setUp()
        self.files = gridfs.GridFS(self.db)

    def test_sizes(self):
        for size in (0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK + 17, 20 * 1024 * 1024):
            with self.subTest(size):
                data = content(size)
                number = self.files.put(data, filename=f"{size}.bin", metadata={"size": size})
                out = self.files.get(number)
                self.assertEqual(out.length, size)
                self.assertEqual(hashlib.sha256(out.read()).digest(), hashlib.sha256(data).digest())
                self.assertEqual(self.db.fs.chunks.count_documents({"files_id": number}), -(-size // CHUNK))
        self.assertEqual(len(self.files.list()), 7)
        found = [f.metadata["size"] for f in self.files.find({"metadata.size": {"$lt": CHUNK}}).sort("length", 1)]
        self.assertEqual(found, [0, 1, CHUNK - 1])

    def test_the_driver_makes_its_indexes(self):
        self.files.put(b"x")
        chunks = self.db.fs.chunks.index_information()["files_id_1_n_1"]
        self.assertEqual(chunks["key"], [("files_id", 1), ("n", 1)])
        self.assertTrue(chunks["unique"])
        self.assertEqual(self.db.fs.files.index_information()["filename_1_uploadDate_1"]["key"], [("filename", 1), ("uploadDate", 1)])

    def test_seeking(self):
        data = content(3 * CHUNK)
        out = self.files.get(self.files.put(data))
        for position in (0, CHUNK - 5, CHUNK, 2 * CHUNK + 1, 3 * CHUNK - 3):
            out.seek(position)
            self.assertEqual(out.read(10), data[position : position + 10])

    def test_versions(self):
        for version in (b"one", b"two", b"three"):
            self.files.put(version, filename="notes")
        self.assertEqual(self.files.get_last_version("notes").read(), b"three")
        self.assertEqual(self.files.get_version("notes", 0).read(), b"one")
        self.assertEqual(self.files.get_version("notes", -2).read(), b"two")
        self.assertEqual(self.files.list(), ["notes"])

    def test_deleting(self):
        keep = self.files.put(content(CHUNK * 2), filename="keep")
        gone = self.files.put(content(CHUNK * 2), filename="gone")
        self.files.delete(gone)
        self.assertFalse(self.files.exists(gone))
        self.assertTrue(self.files.exists(keep))
        with self.assertRaises(gridfs.NoFile):
            self.files.get(gone)
        self.assertEqual(self.db.fs.chunks.count_documents({}), 2)

    def test_an_id_twice(self):
        self.files.put(b"x", _id="mine")
        with self.assertRaises(FileExists):
            self.files.put(b"y", _id="mine")
        self.assertEqual(self.files.get("mine").read(), b"x")

    def test_a_bucket_and_streams(self):
        bucket = gridfs.GridFSBucket(self.db, bucket_name="photos", chunk_size_bytes=1000)
        data = content(12_345)
        number = bucket.upload_from_stream("tern.jpg", io.BytesIO(data))
        out = io.BytesIO()
        bucket.download_to_stream(number, out)
        self.assertEqual(out.getvalue(), data)
        self.assertEqual(self.db.photos.chunks.count_documents({}), 13)
        bucket.rename(number, "bird.jpg")
        self.assertEqual(bucket.open_download_stream_by_name("bird.jpg").read(), data)
        with bucket.open_upload_stream("never") as stream:
            stream.write(b"z" * 5000)
            stream.abort()
        self.assertEqual([f.filename for f in bucket.find({})], ["bird.jpg"])
        bucket.delete(number)
        self.assertEqual(self.db.photos.chunks.count_documents({}), 0)


if __name__ == "__main__":
    unittest.main()
