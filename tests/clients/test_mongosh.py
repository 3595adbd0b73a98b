"""What people type into `mongosh`, and the tour of the README word by word.

A script says what it found as one line of Extended JSON; TERNDB_MONGOSH names the shell.
"""

import json
import os
import re
import subprocess
import unittest

from server import DEADLINE_S, ROOT, Program, for_shell, readme_commands, shared_uri

MONGOSH = os.environ.get("TERNDB_MONGOSH")


@unittest.skipUnless(MONGOSH, "TERNDB_MONGOSH does not name the shell")
class Shell(Program):
    def type(self, lines: str) -> str:
        """What the shell shows to someone who types these lines."""
        return self.run_shell([], lines)

    def evaluate(self, script: str):
        """The value of a script, with the types of Extended JSON."""
        return json.loads(self.run_shell(["--eval", f"EJSON.stringify((() => {{ {script} }})())"]).strip())

    def run_shell(self, arguments, typed: str = "") -> str:
        done = subprocess.run(
            [MONGOSH, "--quiet", "--norc", for_shell(f"{shared_uri()}/{self.db.name}"), *arguments],
            input=typed,
            capture_output=True,
            text=True,
            timeout=2 * DEADLINE_S,
            env=os.environ | {"NO_COLOR": "1", "MONGOSH_FORCE_DISABLE_TELEMETRY": "1"},
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_looking_around(self):
        self.db.birds.insert_one({"_id": 1})
        self.db.create_collection("ants")
        shown = self.type("show dbs\nshow collections\nuse other_place\ndb\n")
        self.assertIn(self.db.name, shown)
        self.assertIn("ants", shown)
        self.assertIn("birds", shown)
        self.assertIn("switched to db other_place", shown)

    def test_documents(self):
        found = self.evaluate(
            """
            const out = {};
            out.one = db.c.insertOne({_id: 1, n: NumberLong("5"), d: ISODate("2024-02-29T00:00:00Z")});
            out.many = db.c.insertMany([{_id: 2, n: 7}, {_id: 3, n: 9}]).insertedIds;
            out.update = db.c.updateMany({n: {$gte: 7}}, {$inc: {n: 1}});
            out.upsert = db.c.updateOne({_id: 4}, {$set: {made: true}}, {upsert: true});
            out.replace = db.c.replaceOne({_id: 3}, {whole: "new"}).modifiedCount;
            out.find = db.c.find({}, {n: 1}).sort({_id: -1}).toArray();
            out.first = db.c.findOne({_id: 1});
            out.and = db.c.findOneAndUpdate({_id: 2}, {$mul: {n: 2}}, {returnDocument: "after"});
            out.count = db.c.countDocuments({n: {$exists: true}});
            out.distinct = db.c.distinct("n");
            out.delete = db.c.deleteMany({_id: {$in: [3, 4]}}).deletedCount;
            try { db.c.insertOne({_id: 1}) } catch (error) { out.error = [error.code, error.name] }
            return out;
            """
        )
        update = {"acknowledged": True, "insertedId": None, "matchedCount": 2, "modifiedCount": 2, "upsertedCount": 0}
        self.assertEqual(
            found,
            {
                "one": {"acknowledged": True, "insertedId": 1},
                "many": {"0": 2, "1": 3},
                "update": update,
                "upsert": update | {"insertedId": 4, "matchedCount": 0, "modifiedCount": 0, "upsertedCount": 1},
                "replace": 1,
                "find": [{"_id": 4}, {"_id": 3}, {"_id": 2, "n": 8}, {"_id": 1, "n": 5}],
                "first": {"_id": 1, "n": 5, "d": {"$date": "2024-02-29T00:00:00Z"}},
                "and": {"_id": 2, "n": 16},
                "count": 2,
                "distinct": [5, 16],
                "delete": 2,
                "error": [11000, "MongoServerError"],
            },
        )

    def test_indexes_and_plans(self):
        found = self.evaluate(
            """
            const out = {};
            for (let i = 0; i < 10; i++) db.c.insertOne({_id: i, a: i % 3, b: i});
            out.made = db.c.createIndex({a: 1, b: -1}, {unique: true});
            out.indexes = db.c.getIndexes();
            const plan = db.c.find({a: 1}).sort({b: -1}).explain("executionStats");
            out.stage = plan.queryPlanner.winningPlan.stage;
            out.input = plan.queryPlanner.winningPlan.inputStage.stage;
            out.bounds = plan.queryPlanner.winningPlan.inputStage.indexBounds;
            out.examined = plan.executionStats.totalDocsExamined;
            out.without = db.c.find({b: 1}).explain().queryPlanner.winningPlan.stage;
            out.aggregate = db.c.explain().aggregate([{$match: {a: 1}}]).queryPlanner.winningPlan.inputStage.indexName;
            const dropped = db.c.dropIndex("a_1_b_-1");
            out.dropped = {nIndexesWas: dropped.nIndexesWas, ok: dropped.ok};
            out.valid = db.c.validate({full: true}).valid;
            return out;
            """
        )
        self.assertEqual(
            found,
            {
                "made": "a_1_b_-1",
                "indexes": [
                    {"v": 2, "key": {"_id": 1}, "name": "_id_"},
                    {"v": 2, "key": {"a": 1, "b": -1}, "name": "a_1_b_-1", "unique": True},
                ],
                "stage": "FETCH",
                "input": "IXSCAN",
                "bounds": {"a": ["[1, 1]"], "b": ["[MaxKey, MinKey]"]},
                "examined": 3,
                "without": "COLLSCAN",
                "aggregate": "a_1_b_-1",
                "dropped": {"nIndexesWas": 2, "ok": 1},
                "valid": True,
            },
        )

    def test_statistics(self):
        found = self.evaluate(
            """
            db.c.insertMany([{_id: 1, s: "x".repeat(1000)}, {_id: 2}]);
            const stats = db.c.stats(), database = db.stats(), status = db.serverStatus(), hello = db.hello();
            return {
              ns: stats.ns, count: stats.count, size: stats.size, nindexes: stats.nindexes,
              hasSizes: typeof stats.storageSize, indexes: Object.keys(stats.indexSizes),
              database: [database.db, database.collections, database.objects, database.dataSize],
              status: [typeof status.uptime, status.connections.current > 0, status.opcounters.insert > 0, typeof status.mem.resident],
              hello: [hello.isWritablePrimary, hello.maxWireVersion, "setName" in hello],
              version: db.version().split(".")[0],
              host: typeof db.hostInfo().system.hostname,
              ping: db.adminCommand({ping: 1}).ok,
              commands: ["insert", "find", "aggregate", "validate"].every(n => n in db.adminCommand({listCommands: 1}).commands),
              dbs: db.adminCommand({listDatabases: 1, nameOnly: true}).databases.some(d => d.name === db.getName()),
              estimated: db.c.estimatedDocumentCount(), dataSize: db.c.dataSize(), infos: db.getCollectionInfos()[0].name,
              parameter: db.adminCommand({getParameter: 1, featureCompatibilityVersion: 1}).featureCompatibilityVersion.version,
            };
            """
        )
        size = found["size"]
        self.assertEqual(
            found,
            {
                "ns": f"{self.db.name}.c",
                "count": 2,
                "size": size,
                "nindexes": 1,
                "hasSizes": "number",
                "indexes": ["_id_"],
                "database": [self.db.name, 1, 2, size],
                "status": ["number", True, True, "number"],
                "hello": [True, 17, True],
                "version": "6",
                "host": "string",
                "ping": 1,
                "commands": True,
                "dbs": True,
                "estimated": 2,
                "dataSize": size,
                "infos": "c",
                "parameter": "6.0",
            },
        )
        self.assertEqual(size, 1022 + 14)

    def test_errors(self):
        found = self.evaluate(
            """
            const out = {};
            const attempt = (name, what) => { try { what(); out[name] = "no error" } catch (e) { out[name] = [e.code, e.codeName] } };
            attempt("replica set", () => rs.initiate());
            attempt("unknown", () => db.runCommand({makeCoffee: 1}));
            attempt("filter", () => db.c.findOne({a: {$foo: 1}}));
            attempt("pipeline", () => db.c.aggregate([{$foo: 1}]).toArray());
            attempt("drop", () => db.c.dropIndex("none"));
            attempt("rename", () => db.none.renameCollection("other"));
            attempt("validate", () => db.none.validate());
            return out;
            """
        )
        self.assertEqual(
            found,
            {
                "replica set": [23, "AlreadyInitialized"],
                "unknown": [59, "CommandNotFound"],
                "filter": [2, "BadValue"],
                "pipeline": [40324, "Location40324"],
                "drop": [26, "NamespaceNotFound"],
                "rename": [26, "NamespaceNotFound"],
                "validate": [26, "NamespaceNotFound"],
            },
        )

    def test_aggregating(self):
        self.assertEqual(
            self.evaluate(
                """
                db.sales.insertMany([{item: "a", n: 2, p: 10}, {item: "b", n: 1, p: 5}, {item: "a", n: 3, p: 1.5}]);
                return db.sales.aggregate([
                  {$group: {_id: "$item", total: {$sum: {$multiply: ["$n", "$p"]}}, n: {$count: {}}}},
                  {$sort: {total: -1}},
                ]).toArray();
                """
            ),
            [{"_id": "a", "total": 24.5, "n": 2}, {"_id": "b", "total": 5, "n": 1}],
        )

    def test_iterating(self):
        self.db.c.insert_many([{"_id": i} for i in range(45)])
        shown = self.type("db.c.find()\nit\nit\n")
        self.assertEqual([int(n) for n in re.findall(r"_id: (\d+)", shown)], list(range(45)))
        self.assertEqual(shown.count('Type "it" for more'), 2)

    def test_a_script_in_a_file(self):
        file = ROOT / "tests" / "clients" / "inventory.js"
        shown = self.run_shell(["--file", str(file)])
        self.assertEqual(shown.strip().splitlines()[-1], "inventory: 3 kinds, 60 pieces, 1 to order")

    def test_the_tour_of_the_readme(self):
        shown = self.type(readme_commands("Five minutes with `mongosh`"))
        self.assertNotRegex(shown, r"MongoServerError|Uncaught|SyntaxError")
        for expected in (
            r"insertedIds: \{ '0': 'tern', '1': 'godwit', '2': 'swift' \}",
            r"\{ _id: 'tern', family: 'Laridae' \},\s+\{ _id: 'godwit', family: 'Scolopacidae' \}",
            r"modifiedCount: 1",
            r"routes_1",
            r"stage: 'FETCH'",
            r"stage: 'IXSCAN'",
            r"\{ _id: 'Apodidae', stops: 3, far: 22500 \}",
            r"valid: true",
        ):
            with self.subTest(expected):
                self.assertRegex(shown, expected)


if __name__ == "__main__":
    unittest.main()
