"""Writing and reading documents through pymongo, with the errors an application handles."""

import datetime
import re
import unittest
import uuid

import bson
from bson import (
    Binary,
    Code,
    DBRef,
    Decimal128,
    Int64,
    MaxKey,
    MinKey,
    ObjectId,
    Regex,
    Timestamp,
)
from bson.raw_bson import RawBSONDocument
from pymongo import (
    ASCENDING,
    DESCENDING,
    DeleteMany,
    DeleteOne,
    InsertOne,
    ReplaceOne,
    ReturnDocument,
    UpdateMany,
    UpdateOne,
    WriteConcern,
)
from pymongo.errors import BulkWriteError, DuplicateKeyError, OperationFailure, WriteConcernError, WriteError

from server import Program, facts, wait_until

DOCUMENT_BYTES_MAX = 16 * 1024 * 1024


def ids(cursor):
    return [document["_id"] for document in cursor]


class Inserting(Program):
    def test_one_and_many(self):
        c = self.db.c
        result = c.insert_one({"a": 1})
        self.assertIsInstance(result.inserted_id, ObjectId)
        self.assertTrue(result.acknowledged)
        result = c.insert_many([{"_id": i} for i in range(5)])
        self.assertEqual(result.inserted_ids, [0, 1, 2, 3, 4])
        self.assertEqual(c.count_documents({}), 6)

    def test_the_server_adds_an_id_first(self):
        raw = self.db.command("insert", "c", documents=[RawBSONDocument(bson.encode({"a": 1}))])
        self.assertEqual(facts(raw), {"n": 1, "ok": 1.0})
        document = self.db.c.find_one()
        self.assertEqual(list(document), ["_id", "a"])
        self.assertIsInstance(document["_id"], ObjectId)

    def test_the_id_is_stored_first(self):
        self.db.command("insert", "c", documents=[RawBSONDocument(bson.encode({"a": 1, "_id": 7}))])
        self.assertEqual(list(self.db.c.find_one()), ["_id", "a"])

    def test_duplicate_key_details(self):
        self.db.c.insert_one({"_id": 1})
        with self.refused(11000, kind=DuplicateKeyError) as refused:
            self.db.c.insert_one({"_id": 1})
        details = refused.error.details
        self.assertEqual(details["keyPattern"], {"_id": 1})
        self.assertEqual(details["keyValue"], {"_id": 1})
        self.assertEqual(details["index"], 0)
        self.assertEqual(
            details["errmsg"],
            f"E11000 duplicate key error collection: {self.db.name}.c index: _id_ dup key: {{ _id: 1 }}",
        )

    def test_ids_of_equal_value_are_equal(self):
        self.db.c.insert_one({"_id": 1})
        for same in (1.0, Int64(1), Decimal128("1.00")):
            with self.refused(11000, kind=DuplicateKeyError):
                self.db.c.insert_one({"_id": same})
        self.db.c.insert_one({"_id": {"a": 1, "b": 2}})
        self.db.c.insert_one({"_id": {"b": 2, "a": 1}})
        with self.refused(11000, kind=DuplicateKeyError):
            self.db.c.insert_one({"_id": {"a": 1.0, "b": 2}})

    def test_ids_that_cannot_be(self):
        for bad, code in (([1], 53), (re.compile("x"), 53), ({"$a": 1}, 52)):
            with self.subTest(bad):
                with self.refused(code, kind=WriteError):
                    self.db.c.insert_one({"_id": bad})
        self.db.c.insert_one({"_id": None})
        self.assertEqual(self.db.c.find_one({"_id": None}), {"_id": None})

    def test_ordered_stops_at_the_first_error(self):
        with self.assertRaises(BulkWriteError) as caught:
            self.db.c.insert_many([{"_id": i} for i in (1, 2, 1, 3)])
        details = caught.exception.details
        self.assertEqual(details["nInserted"], 2)
        self.assertEqual([e["index"] for e in details["writeErrors"]], [2])
        self.assertEqual(ids(self.db.c.find()), [1, 2])

    def test_unordered_goes_on(self):
        with self.assertRaises(BulkWriteError) as caught:
            self.db.c.insert_many([{"_id": i} for i in (1, 2, 1, 3, 2)], ordered=False)
        details = caught.exception.details
        self.assertEqual(details["nInserted"], 3)
        self.assertEqual([e["index"] for e in details["writeErrors"]], [2, 4])
        self.assertEqual({e["code"] for e in details["writeErrors"]}, {11000})
        self.assertEqual(ids(self.db.c.find()), [1, 2, 3])

    def test_a_hundred_thousand_documents(self):
        self.db.c.insert_many([{"_id": i, "n": i % 10} for i in range(100_000)])
        self.assertEqual(self.db.c.count_documents({}), 100_000)
        self.assertEqual(self.db.c.estimated_document_count(), 100_000)
        self.assertEqual(self.db.c.count_documents({"n": 3}), 10_000)
        # One over the limit of one message.
        documents = [RawBSONDocument(bson.encode({"_id": i})) for i in range(100_001)]
        with self.refused(16, "InvalidLength"):
            self.db.command("insert", "d", documents=documents)
        self.assertEqual(self.db.d.count_documents({}), 0)

    def test_nothing_to_insert(self):
        with self.refused(16, "InvalidLength"):
            self.db.command("insert", "c", documents=[])

    def test_names_that_cannot_be(self):
        for name in ("", "a\0b", "a$b", ".a"):
            with self.subTest(name):
                with self.assertRaises(OperationFailure) as caught:
                    self.db.command("insert", name, documents=[{"_id": 1}])
                self.assertEqual(caught.exception.code, 73)


class Values(Program):
    EVERY_TYPE = {
        "_id": ObjectId("507f1f77bcf86cd799439011"),
        "double": 1.5,
        "negative zero": -0.0,
        "infinity": float("inf"),
        "string": "tern",
        "empty": "",
        "object": {"b": 1, "a": {}},
        "array": [1, "a", [2, []], {}],
        "binary": Binary(b"\x00\xff", 0),
        "binary user": Binary(b"mine", 0x80),
        "uuid": Binary.from_uuid(uuid.UUID(int=5)),
        "md5": Binary(b"0" * 16, 5),
        "false": False,
        "true": True,
        "date": datetime.datetime(2024, 2, 29, 12, 30, 15, 123000),
        "date before 1970": datetime.datetime(1912, 4, 15),
        "null": None,
        "regex": Regex("^t.*n$", "ims"),
        "dbref": DBRef("birds", 5, "zoo"),
        "code": Code("function () { return 1 }"),
        "code with scope": Code("return x", {"x": 1}),
        "int32": -(2**31),
        "timestamp": Timestamp(2**32 - 1, 7),
        "int64": Int64(2**63 - 1),
        "small int64": Int64(1),
        "decimal": Decimal128("1.10"),
        "decimal exponent": Decimal128("-9.999999999999999999999999999999999E+6144"),
        "decimal nan": Decimal128("NaN"),
        "min": MinKey(),
        "max": MaxKey(),
        "": "a field without a name",
        "näme \U0001f426": "\u0001 \ud7ff \U0010ffff",
    }
    # Types that drivers no longer write but still read: undefined, symbol, DBPointer.
    DEPRECATED = (
        b"\x06u\x00"
        + b"\x0es\x00\x02\x00\x00\x00x\x00"
        + b"\x0cp\x00\x02\x00\x00\x00c\x00"
        + b"\x01" * 12
    )

    def test_every_type_comes_back_byte_for_byte(self):
        plain = bson.encode(self.EVERY_TYPE)
        body = plain[4:-1] + self.DEPRECATED
        document = (len(body) + 5).to_bytes(4, "little") + body + b"\x00"
        raw = self.db.c.with_options(
            codec_options=bson.CodecOptions(document_class=RawBSONDocument)
        )
        raw.insert_one(RawBSONDocument(document))
        self.assertEqual(raw.find_one().raw, document)
        self.assertEqual(raw.aggregate([{"$match": {}}]).next().raw, document)

    def test_every_type_is_found_by_value(self):
        values = [v for k, v in self.EVERY_TYPE.items() if k not in ("regex", "_id")]
        self.db.c.insert_many([{"_id": i, "v": [value]} for i, value in enumerate(values)])
        for i, value in enumerate(values):
            with self.subTest(value):
                self.assertIn(i, ids(self.db.c.find({"v": {"$in": [value]}})))

    def test_sixteen_mebibytes_and_no_more(self):
        empty = len(bson.encode({"_id": 1, "s": ""}))
        largest = {"_id": 1, "s": "x" * (DOCUMENT_BYTES_MAX - empty)}
        self.assertEqual(len(bson.encode(largest)), DOCUMENT_BYTES_MAX)
        self.db.c.insert_one(largest)
        self.assertEqual(len(bson.encode(self.db.c.find_one({"_id": 1}))), DOCUMENT_BYTES_MAX)
        # A driver refuses this itself; the server must, too.
        larger = bson.encode({"_id": 2, "s": largest["s"] + "x"})
        reply = self.db.command("insert", "c", documents=[RawBSONDocument(larger)])
        self.assertEqual((reply["n"], reply["writeErrors"][0]["code"]), (0, 2))
        self.assertEqual(self.db.c.count_documents({}), 1)

    def test_an_update_does_not_grow_over_the_limit(self):
        self.db.c.insert_one({"_id": 1, "s": "x" * (DOCUMENT_BYTES_MAX - 200)})
        with self.refused(17419, kind=OperationFailure):
            self.db.c.update_one({"_id": 1}, {"$set": {"t": "y" * 1000}})
        self.assertNotIn("t", self.db.c.find_one({}, {"s": 0}))

    def test_nesting(self):
        def nested(depth):
            document = {}
            for _ in range(depth - 1):
                document = {"a": document}
            return document

        self.db.c.insert_one({"_id": 1, "d": nested(180)})
        self.assertEqual(self.db.c.find_one()["d"], nested(180))
        with self.refused(15, kind=WriteError):
            self.db.c.insert_one({"_id": 2, "d": nested(181)})
        with self.refused(15, kind=WriteError):
            self.db.c.update_one({"_id": 1}, {"$set": {"d": nested(181)}})
        # So deep that the message itself is refused.
        with self.refused(15, "Overflow"):
            self.db.c.insert_one({"_id": 3, "d": nested(250)})
        with self.refused(15, "Overflow"):
            self.db.c.find_one({"d": nested(250)})
        self.assertEqual(self.db.c.count_documents({}), 1)

    def test_dollar_fields_and_dots(self):
        self.db.c.insert_one({"_id": 1, "$price": 5, "a.b": 6})
        self.assertEqual(self.db.c.find_one(), {"_id": 1, "$price": 5, "a.b": 6})


class Reading(Program):
    def setUp(self):
        super().setUp()
        self.db.birds.insert_many(
            [
                {"_id": 1, "name": "tern", "km": 70000, "tags": ["sea", "arctic"], "size": {"w": 80, "l": 35}},
                {"_id": 2, "name": "godwit", "km": 29000, "tags": ["shore"], "size": {"w": 72, "l": 40}},
                {"_id": 3, "name": "swift", "km": 22000, "tags": [], "size": {"w": 40, "l": 17}},
                {"_id": 4, "name": "stork", "km": 20000, "tags": ["shore", "land"], "size": None},
                {"_id": 5, "name": "robin", "tags": "garden"},
            ]
        )

    def check(self, filter, expected):
        with self.subTest(filter=filter):
            self.assertEqual(ids(self.db.birds.find(filter).sort("_id", 1)), expected)

    def test_filters(self):
        self.check({}, [1, 2, 3, 4, 5])
        self.check({"name": "tern"}, [1])
        self.check({"km": {"$gt": 20000, "$lt": 30000}}, [2, 3])
        self.check({"km": {"$in": [22000, 70000.0, Decimal128("20000")]}}, [1, 3, 4])
        self.check({"km": None}, [5])
        self.check({"km": {"$exists": False}}, [5])
        self.check({"tags": "shore"}, [2, 4])
        self.check({"tags": {"$all": ["shore", "land"]}}, [4])
        self.check({"tags": {"$size": 0}}, [3])
        self.check({"tags.0": "shore"}, [2, 4])
        self.check({"tags": {"$elemMatch": {"$regex": "^a"}}}, [1])
        self.check({"tags": {"$type": "array"}}, [1, 2, 3, 4])
        self.check({"size.w": {"$gte": 72}}, [1, 2])
        self.check({"size": None}, [4, 5])
        self.check({"size": {"w": 40, "l": 17}}, [3])
        self.check({"size": {"l": 17, "w": 40}}, [])
        self.check({"$or": [{"name": "tern"}, {"km": {"$lt": 21000}}]}, [1, 4])
        self.check({"$nor": [{"name": "tern"}, {"km": {"$lt": 21000}}]}, [2, 3, 5])
        self.check({"name": {"$not": re.compile("^s")}}, [1, 2, 5])
        self.check({"name": re.compile("^S", re.I)}, [3, 4])
        self.check({"$expr": {"$gt": ["$size.w", {"$multiply": ["$size.l", 2]}]}}, [1, 3])
        self.check({"km": {"$mod": [1000, 0]}}, [1, 2, 3, 4])
        self.check({"km": {"$bitsAllClear": [0]}}, [1, 2, 3, 4])

    def test_a_wrong_filter(self):
        for filter in ({"km": {"$foo": 1}}, {"$foo": 1}, {"km": {"$in": 1}}, {"$and": []}):
            with self.subTest(filter), self.refused(2, "BadValue"):
                self.db.birds.find_one(filter)

    def test_projections(self):
        for projection, expected in (
            ({"name": 1}, {"_id": 1, "name": "tern"}),
            ({"name": 1, "_id": 0}, {"name": "tern"}),
            ({"size": 0, "tags": 0}, {"_id": 1, "name": "tern", "km": 70000}),
            ({"size.w": 1}, {"_id": 1, "size": {"w": 80}}),
            ({"tags": {"$slice": -1}, "name": 1}, {"_id": 1, "name": "tern", "tags": ["arctic"]}),
            ({"tags": {"$elemMatch": {"$eq": "arctic"}}}, {"_id": 1, "tags": ["arctic"]}),
            ({"_id": 0, "x": {"$add": ["$km", 1]}}, {"x": 70001}),
        ):
            with self.subTest(projection):
                self.assertEqual(self.db.birds.find_one({"_id": 1}, projection), expected)
        self.assertEqual(
            self.db.birds.find_one({"_id": 4, "tags": "land"}, {"tags.$": 1}), {"_id": 4, "tags": ["land"]}
        )
        with self.refused(31254, "Location31254"):
            self.db.birds.find_one({}, {"a": 1, "b": 0})

    def test_sort_skip_limit(self):
        c = self.db.birds
        self.assertEqual(ids(c.find().sort("km", DESCENDING)), [1, 2, 3, 4, 5])
        self.assertEqual(ids(c.find().sort([("km", ASCENDING)])), [5, 4, 3, 2, 1])
        self.assertEqual(ids(c.find().sort([("size.l", -1), ("_id", -1)])), [2, 1, 3, 5, 4])
        self.assertEqual(ids(c.find().sort("_id", 1).skip(1).limit(2)), [2, 3])
        self.assertEqual(ids(c.find().sort("_id", 1).limit(-2)), [1, 2])
        self.assertEqual(ids(c.find().sort("_id", 1).skip(10)), [])
        with self.refused(51024, "Location51024"):
            self.db.command("find", "birds", limit=-1)

    def test_counting(self):
        c = self.db.birds
        self.assertEqual(c.estimated_document_count(), 5)
        self.assertEqual(c.count_documents({"tags": "shore"}), 2)
        self.assertEqual(c.count_documents({}, skip=1, limit=2), 2)
        self.assertEqual(self.db.none.count_documents({}), 0)
        self.assertEqual(self.db.none.estimated_document_count(), 0)
        counted = self.db.command("count", "birds", query={"km": {"$gt": 21000}}, limit=2)
        self.assertEqual(facts(counted), {"n": 2, "ok": 1.0})

    def test_distinct(self):
        c = self.db.birds
        self.assertEqual(sorted(c.distinct("tags")), ["arctic", "garden", "land", "sea", "shore"])
        self.assertEqual(sorted(c.distinct("size.w")), [40, 72, 80])
        self.assertEqual(c.distinct("name", {"km": {"$gt": 50000}}), ["tern"])
        self.assertEqual(self.db.none.distinct("x"), [])

    def test_comments_and_unknown_fields(self):
        self.assertEqual(self.db.birds.find_one({"_id": 1}, comment={"why": "test"})["name"], "tern")
        with self.refused(40415, "Location40415"):
            self.db.command("find", "birds", colour="red")


class Updating(Program):
    def setUp(self):
        super().setUp()
        self.db.c.insert_many([{"_id": i, "n": i, "g": i % 2} for i in range(6)])

    def test_one_and_many(self):
        result = self.db.c.update_one({"_id": 1}, {"$set": {"x": 1}, "$inc": {"n": 5}})
        self.assertEqual((result.matched_count, result.modified_count, result.upserted_id), (1, 1, None))
        self.assertEqual(self.db.c.find_one({"_id": 1}), {"_id": 1, "n": 6, "g": 1, "x": 1})
        result = self.db.c.update_one({"_id": 1}, {"$set": {"x": 1}})
        self.assertEqual((result.matched_count, result.modified_count), (1, 0))
        result = self.db.c.update_many({"g": 0}, {"$set": {"even": True}})
        self.assertEqual((result.matched_count, result.modified_count), (3, 3))
        result = self.db.c.update_many({"g": 9}, {"$set": {"even": True}})
        self.assertEqual((result.matched_count, result.modified_count), (0, 0))

    def test_replacing(self):
        result = self.db.c.replace_one({"_id": 2}, {"whole": "new"})
        self.assertEqual((result.matched_count, result.modified_count), (1, 1))
        self.assertEqual(self.db.c.find_one({"_id": 2}), {"_id": 2, "whole": "new"})
        with self.refused(66, kind=WriteError):
            self.db.c.replace_one({"_id": 2}, {"_id": 3})

    def test_upserts(self):
        result = self.db.c.update_one({"_id": 100, "k": "v"}, {"$set": {"x": 1}, "$setOnInsert": {"y": 2}}, upsert=True)
        self.assertEqual((result.matched_count, result.upserted_id), (0, 100))
        self.assertEqual(self.db.c.find_one({"_id": 100}), {"_id": 100, "k": "v", "x": 1, "y": 2})
        result = self.db.c.update_one({"_id": 100}, {"$setOnInsert": {"y": 3}}, upsert=True)
        self.assertEqual((result.matched_count, result.modified_count, result.upserted_id), (1, 0, None))
        result = self.db.c.replace_one({"k": "other"}, {"z": 1}, upsert=True)
        self.assertIsInstance(result.upserted_id, ObjectId)
        self.assertEqual(self.db.c.find_one({"_id": result.upserted_id}, {"_id": 0}), {"z": 1})

    def test_arrays(self):
        c = self.db.arrays
        c.insert_one({"_id": 1, "a": [5, 1, 9], "d": [{"k": 1, "v": 0}, {"k": 2, "v": 0}]})
        c.update_one({"_id": 1}, {"$push": {"a": {"$each": [7, 3], "$sort": 1, "$slice": 4}}})
        self.assertEqual(c.find_one()["a"], [1, 3, 5, 7])
        c.update_one({"_id": 1, "a": 5}, {"$set": {"a.$": 50}})
        self.assertEqual(c.find_one()["a"], [1, 3, 50, 7])
        c.update_one({"_id": 1}, {"$inc": {"d.$[e].v": 1}}, array_filters=[{"e.k": 2}])
        self.assertEqual(c.find_one()["d"], [{"k": 1, "v": 0}, {"k": 2, "v": 1}])
        c.update_one({"_id": 1}, {"$mul": {"a.$[]": 2}, "$pull": {"d": {"k": 1}}})
        self.assertEqual(c.find_one(), {"_id": 1, "a": [2, 6, 100, 14], "d": [{"k": 2, "v": 1}]})
        c.update_one({"_id": 1}, {"$addToSet": {"a": {"$each": [2, 3]}}})
        c.update_one({"_id": 1}, {"$pop": {"a": -1}})
        c.update_one({"_id": 1}, {"$pullAll": {"a": [14]}})
        self.assertEqual(c.find_one()["a"], [6, 100, 3])

    def test_pipeline_update(self):
        self.db.c.update_many({}, [{"$set": {"double": {"$multiply": ["$n", 2]}}}, {"$unset": "g"}])
        self.assertEqual(self.db.c.find_one({"_id": 4}), {"_id": 4, "n": 4, "double": 8})

    def test_errors(self):
        self.db.c.insert_one({"_id": "s", "text": "abc", "list": [1]})
        for update, code in (
            ({"$inc": {"text": 1}}, 14),
            ({"$set": {"_id": 5}}, 66),
            ({"$set": {"a": 1}, "$unset": {"a": 1}}, 40),
            ({"$set": {"a": 1, "a.b": 1}}, 40),
            ({"$set": {"text.b": 1}}, 28),
            ({"$push": {"text": 1}}, 2),
            ({"$foo": {"a": 1}}, 9),
            ({"$set": {"list.$": 1}}, 2),
            ({"$rename": {"a": "a"}}, 2),
        ):
            with self.subTest(update), self.refused(code, kind=WriteError):
                self.db.c.update_one({"_id": "s"}, update)
        self.assertEqual(self.db.c.find_one({"_id": "s"}), {"_id": "s", "text": "abc", "list": [1]})

    def test_find_one_and(self):
        c = self.db.c
        self.assertEqual(c.find_one_and_update({"_id": 1}, {"$inc": {"n": 1}}), {"_id": 1, "n": 1, "g": 1})
        after = c.find_one_and_update(
            {"g": 0}, {"$inc": {"n": 10}}, sort=[("n", -1)], return_document=ReturnDocument.AFTER, projection={"g": 0}
        )
        self.assertEqual(after, {"_id": 4, "n": 14})
        self.assertEqual(c.find_one_and_delete({"g": 1}, sort=[("_id", -1)]), {"_id": 5, "n": 5, "g": 1})
        self.assertIsNone(c.find_one({"_id": 5}))
        self.assertEqual(c.find_one_and_replace({"_id": 0}, {"new": 1}, return_document=True), {"_id": 0, "new": 1})
        self.assertIsNone(c.find_one_and_update({"_id": 77}, {"$set": {"a": 1}}))
        self.assertIsNone(c.find_one_and_update({"_id": 77}, {"$set": {"a": 1}}, upsert=True))
        self.assertEqual(c.find_one({"_id": 77}), {"_id": 77, "a": 1})
        raw = self.db.command("findAndModify", "c", query={"_id": 78}, update={"$set": {"a": 2}}, upsert=True, new=True)
        self.assertEqual(raw["lastErrorObject"], {"n": 1, "updatedExisting": False, "upserted": 78})
        self.assertEqual(raw["value"], {"_id": 78, "a": 2})
        with self.refused(9, "FailedToParse"):
            self.db.command("findAndModify", "c", query={}, remove=True, update={"$set": {"a": 1}})

    def test_deleting(self):
        self.assertEqual(self.db.c.delete_one({"g": 1}).deleted_count, 1)
        self.assertEqual(self.db.c.delete_many({"g": 1}).deleted_count, 2)
        self.assertEqual(self.db.c.delete_many({"g": 1}).deleted_count, 0)
        self.assertEqual(self.db.c.delete_many({}).deleted_count, 3)
        self.assertEqual(self.db.c.count_documents({}), 0)


class Bulk(Program):
    def test_every_kind_in_order(self):
        result = self.db.c.bulk_write(
            [
                InsertOne({"_id": 1, "x": 1}),
                InsertOne({"_id": 2, "x": 1}),
                UpdateOne({"_id": 1}, {"$inc": {"x": 5}}),
                UpdateMany({}, {"$set": {"seen": True}}),
                ReplaceOne({"_id": 2}, {"replaced": True}),
                UpdateOne({"_id": 3}, {"$set": {"made": True}}, upsert=True),
                DeleteOne({"_id": 1}),
                DeleteMany({"none": 1}),
            ]
        )
        self.assertEqual(result.inserted_count, 2)
        self.assertEqual(result.matched_count, 4)
        self.assertEqual(result.modified_count, 4)
        self.assertEqual(result.deleted_count, 1)
        self.assertEqual(result.upserted_ids, {5: 3})
        self.assertEqual(
            list(self.db.c.find().sort("_id", 1)), [{"_id": 2, "replaced": True}, {"_id": 3, "made": True}]
        )

    MIXED = [
        InsertOne({"_id": 1}),
        InsertOne({"_id": 1}),
        UpdateOne({"_id": 1}, {"$inc": {"n": 1}}),
        UpdateOne({"_id": 1}, {"$set": {"_id": 2}}),
        InsertOne({"_id": 5}),
        DeleteOne({"_id": 5}),
    ]

    def test_ordered_with_an_error(self):
        with self.assertRaises(BulkWriteError) as caught:
            self.db.c.bulk_write(self.MIXED)
        details = caught.exception.details
        self.assertEqual([(e["index"], e["code"]) for e in details["writeErrors"]], [(1, 11000)])
        self.assertEqual((details["nInserted"], details["nModified"], details["nRemoved"]), (1, 0, 0))

    def test_unordered_with_errors(self):
        with self.assertRaises(BulkWriteError) as caught:
            self.db.c.bulk_write(self.MIXED, ordered=False)
        details = caught.exception.details
        self.assertEqual([(e["index"], e["code"]) for e in details["writeErrors"]], [(1, 11000), (3, 66)])
        self.assertEqual((details["nInserted"], details["nModified"], details["nRemoved"]), (2, 1, 1))
        self.assertEqual(list(self.db.c.find()), [{"_id": 1, "n": 1}])

    def test_many_updates(self):
        self.db.c.insert_many([{"_id": i, "n": 0} for i in range(2000)])
        result = self.db.c.bulk_write([UpdateOne({"_id": i}, {"$inc": {"n": i}}) for i in range(2000)], ordered=False)
        self.assertEqual(result.modified_count, 1999)
        self.assertEqual(self.db.c.count_documents({"$expr": {"$eq": ["$_id", "$n"]}}), 2000)


class WriteConcerns(Program):
    def test_acknowledged(self):
        for concern in (
            WriteConcern(w=1),
            WriteConcern(w="majority"),
            WriteConcern(w=1, j=True),
            WriteConcern(w="majority", wtimeout=60_000),
            WriteConcern(w=1, j=False),
        ):
            with self.subTest(concern.document):
                c = self.db.get_collection("c", write_concern=concern)
                self.assertTrue(c.insert_one({}).acknowledged)
                self.assertTrue(c.update_many({}, {"$inc": {"n": 1}}).acknowledged)
        self.assertEqual(self.db.c.count_documents({}), 5)

    def test_unacknowledged(self):
        c = self.db.get_collection("c", write_concern=WriteConcern(w=0))
        self.assertFalse(c.insert_one({"_id": 1}).acknowledged)
        # The second one fails, and nobody hears of it; the connection goes on.
        c.insert_one({"_id": 1})
        c.insert_many([{"_id": i} for i in range(2, 500)])
        c.update_one({"_id": 1}, {"$set": {"a": 1}})
        c.delete_one({"_id": 2})
        wait_until(lambda: self.db.c.count_documents({}) == 498, "unacknowledged writes arrive")
        wait_until(lambda: self.db.c.find_one({"_id": 1, "a": 1}), "an unacknowledged update arrives")

    def test_refused(self):
        for concern, code in (
            ({"w": -1}, 9),
            ({"w": 51}, 9),
            ({"w": 1, "colour": 1}, 40415),
        ):
            with self.subTest(concern):
                with self.assertRaises(OperationFailure) as caught:
                    self.db.command("insert", "c", documents=[{}], writeConcern=concern)
                self.assertEqual(caught.exception.code, code)

    def test_not_satisfied(self):
        """The write is there, and the reply says what was not confirmed."""
        for w, code, name in ((2, 100, "UnsatisfiableWriteConcern"), ("elsewhere", 79, "UnknownReplWriteConcern")):
            with self.subTest(w):
                c = self.db.get_collection("c", write_concern=WriteConcern(w=w, wtimeout=1000))
                with self.assertRaises(WriteConcernError) as caught:
                    c.insert_one({"_id": w})
                self.assertEqual(caught.exception.code, code)
                self.assertEqual(caught.exception.details["codeName"], name)
                self.assertEqual(self.db.c.count_documents({"_id": w}), 1)


if __name__ == "__main__":
    unittest.main()
