"""The kinds of writers, and the checks on what they share.

- `DocumentWriter`: documents of its own (inserted, in batches too, counted up,
  replaced, found and modified, deleted), its own field in a few hot counters that
  all of them increment, and unique values that change hands.
- `HeavyWriter`: large documents, replaced over and over, so that the engine flushes
  and compacts and the log goes from segment to segment.
- `SequenceWriter`: one sequence through one connection over several collections,
  mostly without waiting for the disk: it may end early, never have a gap.
- `CatalogWriter`: creates and drops collections, and builds and drops indexes while
  the others write.
"""

from pymongo import ReturnDocument
from pymongo.errors import DuplicateKeyError

from workload import DATABASE, MAJORITY, Lost, Writer

HOT_DOCUMENTS = 3
UNIQUE_VALUES = 12
PLACES_EACH = 4
# Beyond this a writer deletes more than it inserts, so that checking stays quick.
DOCUMENTS_EACH = 150
BIG_DOCUMENTS = 600
SHARED = "big"


def prepare(client) -> None:
    """What is there before the first round."""
    database = client.get_database(DATABASE, write_concern=MAJORITY)
    database.hot.insert_many([{"_id": number, "n": 0, "by": {}} for number in range(HOT_DOCUMENTS)])
    database.places.create_index("value", unique=True, sparse=True)
    for start in range(0, BIG_DOCUMENTS, 300):
        database[SHARED].insert_many(
            [
                {"_id": f"base-{number}", "t": "base", "n": number % 97, "k": number, "pad": "b" * 100}
                for number in range(start, start + 300)
            ]
        )


class DocumentWriter(Writer):
    def __init__(self, name: str):
        super().__init__(name)
        self.own = f"own_{name}"

    def prepare(self, client) -> None:
        database = client.get_database(DATABASE, write_concern=MAJORITY)
        database[self.own].create_index("n")
        database[self.own].create_index([("tags", 1), ("n", -1)])
        places = [{"_id": f"{self.name}-{number}", "t": self.name} for number in range(PLACES_EACH)]
        database.places.insert_many(places)
        for place in places:
            self.state["places", place["_id"]] = place
        self.current = dict(self.state)

    def read(self, database) -> dict:
        found = {}
        for collection in (self.own, SHARED, "places"):
            for document in database[collection].find({"t": self.name}, batch_size=1000):
                found[collection, document["_id"]] = document
        for document in database.hot.find():
            if self.name in document["by"]:
                found["hot", document["_id"]] = document["by"][self.name]
        return found

    def operate(self, database, random) -> None:
        operation = random.choices(
            [self.insert, self.batch, self.increment, self.hot, self.find_and_modify, self.replace, self.delete, self.unique],
            [20, 8, 20, 15, 10, 6, 14 if len(self.current) < DOCUMENTS_EACH else 150, 12],
        )[0]
        concern = self.concern(random)
        operation(lambda name: database[name].with_options(write_concern=concern), concern, random)

    def new_document(self, random) -> dict:
        self.next_id += 1
        return {
            "_id": f"{self.name}-{self.next_id}",
            "t": self.name,
            "n": random.randrange(1000),
            "tags": random.sample(range(50), random.randrange(4)),
            "pad": chr(97 + random.randrange(26)) * random.choice([0, 10, 100, 3000]),
        }

    def any_document(self, random):
        """A key of a document of this writer, and the document; or None."""
        keys = [key for key in self.current if key[0] in (self.own, SHARED)]
        if not keys:
            return None
        key = random.choice(keys)
        return key, self.current[key]

    def insert(self, on, concern, random) -> None:
        document = self.new_document(random)
        collection = random.choice([self.own, SHARED])
        effects = [((collection, document["_id"]), document)]
        self.apply([effects], concern, lambda: on(collection).insert_one(dict(document)))

    def batch(self, on, concern, random) -> None:
        documents = [self.new_document(random) for _ in range(random.randrange(2, 20))]
        collection = random.choice([self.own, SHARED])
        self.apply(
            [[((collection, document["_id"]), document)] for document in documents],
            concern,
            lambda: on(collection).insert_many([dict(document) for document in documents]),
            lambda reply: len(reply.inserted_ids) == len(documents),
        )

    def increment(self, on, concern, random) -> None:
        if not (chosen := self.any_document(random)):
            return
        (collection, number), document = chosen
        by = random.choice([-1, 1, 7])
        self.apply(
            [[((collection, number), document | {"n": document["n"] + by})]],
            concern,
            lambda: on(collection).update_one({"_id": number}, {"$inc": {"n": by}}),
            lambda reply: reply.matched_count == 1 and reply.modified_count == 1,
        )

    def find_and_modify(self, on, concern, random) -> None:
        if not (chosen := self.any_document(random)):
            return
        (collection, number), document = chosen
        tags = random.sample(range(50), 3)
        after = document | {"n": document["n"] + 1, "tags": tags}
        self.apply(
            [[((collection, number), after)]],
            concern,
            lambda: on(collection).find_one_and_update(
                {"_id": number, "n": document["n"]},
                {"$inc": {"n": 1}, "$set": {"tags": tags}},
                return_document=ReturnDocument.AFTER,
            ),
            lambda reply: reply == after,
        )

    def replace(self, on, concern, random) -> None:
        if not (chosen := self.any_document(random)):
            return
        (collection, number), _ = chosen
        after = self.new_document(random) | {"_id": number}
        self.apply(
            [[((collection, number), after)]],
            concern,
            lambda: on(collection).replace_one({"_id": number}, after),
            lambda reply: reply.matched_count == 1,
        )

    def delete(self, on, concern, random) -> None:
        if not (chosen := self.any_document(random)):
            return
        (collection, number), _ = chosen
        self.apply(
            [[((collection, number), None)]],
            concern,
            lambda: on(collection).delete_one({"_id": number}),
            lambda reply: reply.deleted_count == 1,
        )

    def hot(self, on, concern, random) -> None:
        number = random.randrange(HOT_DOCUMENTS)
        after = self.current.get(("hot", number), 0) + 1
        self.apply(
            [[(("hot", number), after)]],
            concern,
            lambda: on("hot").update_one({"_id": number}, {"$inc": {"n": 1, f"by.{self.name}": 1}}),
            lambda reply: reply.modified_count == 1,
        )

    def unique(self, on, concern, random) -> None:
        """Takes a value if nobody has it, or lets one go."""
        number = f"{self.name}-{random.randrange(PLACES_EACH)}"
        place = self.current["places", number]
        if "value" in place:
            after = {name: value for name, value in place.items() if name != "value"}
            change = {"$unset": {"value": 1}}
        else:
            value = random.randrange(UNIQUE_VALUES)
            after = place | {"value": value}
            change = {"$set": {"value": value}}
        try:
            self.apply(
                [[(("places", number), after)]],
                concern,
                lambda: on("places").update_one({"_id": number}, change),
                lambda reply: reply.modified_count == 1,
            )
        except DuplicateKeyError:
            if "value" in place:
                raise


class HeavyWriter(Writer):
    buffered_share = 0.6

    def read(self, database) -> dict:
        return {
            document["_id"]: (document["n"], document["size"], document["pad"] == pad(document["n"], document["size"]))
            for document in database.heavy.find({}, batch_size=20)
        }

    def operate(self, database, random) -> None:
        number = random.randrange(40)
        self.next_id += 1
        n, size = self.next_id, random.choice([50_000, 200_000, 600_000])
        concern = self.concern(random)
        collection = database.heavy.with_options(write_concern=concern)
        document = {"n": n, "size": size, "pad": pad(n, size)}
        self.apply(
            [[(number, (n, size, True))]],
            concern,
            lambda: collection.replace_one({"_id": number}, document, upsert=True),
        )


def pad(n: int, size: int) -> bytes:
    """Bytes that differ from one version to the next."""
    return n.to_bytes(8, "little") * (size // 8)


class SequenceWriter(Writer):
    """Must be given a client with one connection."""

    buffered_share = 0.95
    kept = 400

    def read(self, database) -> dict:
        return {
            document["_id"]: document
            for number in range(3)
            for document in database[f"sequence_{number}"].find()
        }

    def operate(self, database, random) -> None:
        concern = self.concern(random)
        on = lambda number: database[f"sequence_{number % 3}"].with_options(write_concern=concern)
        if len(self.current) > self.kept:
            oldest = min(self.current)
            self.apply(
                [[(oldest, None)]],
                concern,
                lambda: on(oldest).delete_one({"_id": oldest}),
                lambda reply: reply.deleted_count == 1,
            )
            return
        # One more than the last: an id that was attempted in vain may be used again.
        number = max(self.current, default=0) + 1
        document = {"_id": number, "pad": "s" * random.choice([0, 50, 500])}
        self.apply([[(number, document)]], concern, lambda: on(number).insert_one(dict(document)))


class CatalogWriter(Writer):
    buffered_share = 0.2
    prefix = "made_"

    def prepare(self, client) -> None:
        self.state["indexes", SHARED] = {"_id_"}
        self.current = dict(self.state)

    def read(self, database) -> dict:
        found = {}
        names = [name for name in database.list_collection_names() if name.startswith(self.prefix)]
        for name in names + [SHARED]:
            found["indexes", name] = {index["name"] for index in database[name].list_indexes()}
        for name in names:
            for document in database[name].find():
                found[name, document["_id"]] = document
        return found

    def operate(self, database, random) -> None:
        made = [key[1] for key in self.current if key[0] == "indexes" and key[1] != SHARED]
        operation = random.choices(
            [self.create, self.fill, self.drop, self.build], [10, 20, 10 if len(made) < 6 else 40, 20]
        )[0]
        operation(database, random, made)

    def create(self, database, random, made) -> None:
        self.next_id += 1
        name = f"{self.prefix}{self.next_id}"
        self.apply(
            [[(("indexes", name), {"_id_"})]],
            MAJORITY,
            lambda: database.command("create", name, writeConcern={"w": "majority"}),
        )

    def fill(self, database, random, made) -> None:
        if not made:
            return
        name, concern = random.choice(made), self.concern(random)
        self.next_id += 1
        documents = [{"_id": self.next_id * 100 + k, "n": random.randrange(9)} for k in range(random.randrange(1, 30))]
        self.apply(
            [[((name, document["_id"]), document)] for document in documents],
            concern,
            lambda: database[name].with_options(write_concern=concern).insert_many(documents),
        )

    def drop(self, database, random, made) -> None:
        if not made:
            return
        name = random.choice(made)
        gone = [(("indexes", name), None)]
        gone += [(key, None) for key in self.current if key[0] == name]
        self.apply(
            [gone],
            MAJORITY,
            lambda: database.command("drop", name, writeConcern={"w": "majority"}),
        )

    def build(self, database, random, made) -> None:
        """Builds an index that is not there, or drops one that is."""
        name = random.choice(made + [SHARED] * 3)
        specification, options = random.choice(
            [([("n", 1)], {}), ([("tags", 1)], {}), ([("t", 1), ("n", -1)], {}), ([("n", "hashed")], {}), ([("_id", 1), ("n", 1)], {"unique": True})]
        )
        index = "_".join(f"{field}_{direction}" for field, direction in specification)
        there = self.current["indexes", name]
        concern = {"w": "majority"}
        if index in there:
            command = {"dropIndexes": name, "index": index, "writeConcern": concern}
            after = there - {index}
        else:
            indexes = [{"key": dict(specification), "name": index} | options]
            command = {"createIndexes": name, "indexes": indexes, "writeConcern": concern}
            after = there | {index}
        self.apply([[(("indexes", name), after)]], MAJORITY, lambda: database.command(command))


def check_shared(client) -> None:
    """What no single writer can say: sums, unique values, indexes, `validate`."""
    database = client[DATABASE]
    for document in database.hot.find():
        if document["n"] != sum(document["by"].values()):
            raise Lost(f"a hot counter is not the sum of its parts: {document}")
    values = [place["value"] for place in database.places.find() if "value" in place]
    if len(values) != len(set(values)):
        raise Lost(f"a unique value is held twice: {sorted(values)}")
    base = sum(1 for _ in database[SHARED].find({"t": "base"}))
    if base != BIG_DOCUMENTS:
        raise Lost(f"{base} of {BIG_DOCUMENTS} documents that nobody touches are there")
    for name in database.list_collection_names():
        check_indexes(database[name])
        outcome = database.command("validate", name)
        if not outcome.get("valid"):
            raise Lost(f"validate says of {name}: {outcome}")


def check_indexes(collection) -> None:
    """Every complete index leads to the documents that a scan finds."""
    indexes = [index for index in collection.list_indexes() if not index.get("sparse")]
    if len(indexes) < 2:
        return  # The index on _id is the order of the records themselves.
    scanned = {repr(document["_id"]): document for document in collection.find(hint={"$natural": 1})}
    for index in indexes:
        through = list(collection.find(hint=index["name"]))
        by_id = {repr(document["_id"]): document for document in through}
        if len(through) != len(by_id):
            raise Lost(f"{collection.name}.{index['name']} leads to a document twice")
        if by_id != scanned:
            only = sorted(by_id.keys() ^ scanned.keys())[:5]
            raise Lost(f"{collection.name}.{index['name']} and a scan differ: {only or 'in content'}")
