"""A shop's reports: pipelines over customers, products and orders, as an application would write them."""

import datetime
import unittest

from bson import Decimal128
from pymongo.errors import OperationFailure

from server import Program

DAY = datetime.timedelta(days=1)
START = datetime.datetime(2024, 1, 1)

CUSTOMERS = [
    {"_id": "ada", "country": "UK", "since": START - 400 * DAY},
    {"_id": "bob", "country": "US", "since": START - 10 * DAY},
    {"_id": "eva", "country": "DE", "since": START},
    {"_id": "kim", "country": "DE", "since": START + 5 * DAY},
]
PRODUCTS = [
    {"_id": 1, "name": "lamp", "kind": "home", "price": Decimal128("19.90")},
    {"_id": 2, "name": "desk", "kind": "home", "price": Decimal128("149.00")},
    {"_id": 3, "name": "pen", "kind": "office", "price": Decimal128("1.25")},
]
ORDERS = [
    {"_id": 1, "customer": "ada", "at": START + 1 * DAY, "lines": [{"p": 1, "n": 2}, {"p": 3, "n": 10}], "state": "paid"},
    {"_id": 2, "customer": "bob", "at": START + 2 * DAY, "lines": [{"p": 2, "n": 1}], "state": "open"},
    {"_id": 3, "customer": "ada", "at": START + 40 * DAY, "lines": [{"p": 3, "n": 4}], "state": "paid"},
    {"_id": 4, "customer": "eva", "at": START + 41 * DAY, "lines": [], "state": "open"},
    {"_id": 5, "customer": "gone", "at": START + 70 * DAY, "lines": [{"p": 9, "n": 1}], "state": "paid"},
]
TOTALS = [
    {"$unwind": "$lines"},
    {"$lookup": {"from": "products", "localField": "lines.p", "foreignField": "_id", "as": "product"}},
    {"$unwind": "$product"},
    {"$group": {"_id": "$_id", "total": {"$sum": {"$multiply": ["$lines.n", "$product.price"]}}, "customer": {"$first": "$customer"}}},
    {"$sort": {"_id": 1}},
]


class Reports(Program):
    def setUp(self):
        super().setUp()
        self.db.customers.insert_many(CUSTOMERS)
        self.db.products.insert_many(PRODUCTS)
        self.db.orders.insert_many(ORDERS)

    def check(self, collection, pipeline, expected, **options):
        self.assertEqual(list(self.db[collection].aggregate(pipeline, **options)), expected)

    def test_totals(self):
        self.check(
            "orders",
            TOTALS,
            [
                {"_id": 1, "total": Decimal128("52.30"), "customer": "ada"},
                {"_id": 2, "total": Decimal128("149.00"), "customer": "bob"},
                {"_id": 3, "total": Decimal128("5.00"), "customer": "ada"},
            ],
        )

    def test_groups(self):
        self.check(
            "orders",
            [
                {"$match": {"state": {"$in": ["paid", "open"]}}},
                {
                    "$group": {
                        "_id": {"year": {"$year": "$at"}, "month": {"$month": "$at"}},
                        "orders": {"$sum": 1},
                        "first": {"$min": "$at"},
                        "who": {"$addToSet": "$customer"},
                        "lines": {"$avg": {"$size": "$lines"}},
                    }
                },
                {"$set": {"who": {"$sortArray": {"input": "$who", "sortBy": 1}}}},
                {"$sort": {"_id.month": 1}},
            ],
            [
                {"_id": {"year": 2024, "month": 1}, "orders": 2, "first": START + 1 * DAY, "who": ["ada", "bob"], "lines": 1.5},
                {"_id": {"year": 2024, "month": 2}, "orders": 2, "first": START + 40 * DAY, "who": ["ada", "eva"], "lines": 0.5},
                {"_id": {"year": 2024, "month": 3}, "orders": 1, "first": START + 70 * DAY, "who": ["gone"], "lines": 1.0},
            ],
        )

    def test_joins(self):
        self.check(
            "customers",
            [
                {
                    "$lookup": {
                        "from": "orders",
                        "let": {"who": "$_id"},
                        "pipeline": [
                            {"$match": {"$expr": {"$and": [{"$eq": ["$customer", "$$who"]}, {"$eq": ["$state", "paid"]}]}}},
                            {"$sort": {"at": -1}},
                            {"$project": {"_id": 1}},
                        ],
                        "as": "paid",
                    }
                },
                {"$project": {"country": 1, "paid": "$paid._id"}},
                {"$sort": {"_id": 1}},
            ],
            [
                {"_id": "ada", "country": "UK", "paid": [3, 1]},
                {"_id": "bob", "country": "US", "paid": []},
                {"_id": "eva", "country": "DE", "paid": []},
                {"_id": "kim", "country": "DE", "paid": []},
            ],
        )
        # Both forms together.
        self.check(
            "orders",
            [
                {"$lookup": {"from": "customers", "localField": "customer", "foreignField": "_id", "pipeline": [{"$project": {"country": 1, "_id": 0}}], "as": "c"}},
                {"$match": {"c": []}},
                {"$project": {"_id": 1}},
            ],
            [{"_id": 5}],
        )

    def test_unwinding(self):
        self.check(
            "orders",
            [
                {"$unwind": {"path": "$lines", "includeArrayIndex": "i", "preserveNullAndEmptyArrays": True}},
                {"$sort": {"_id": 1, "i": 1}},
                {"$project": {"i": 1, "p": "$lines.p"}},
            ],
            [
                {"_id": 1, "i": 0, "p": 1},
                {"_id": 1, "i": 1, "p": 3},
                {"_id": 2, "i": 0, "p": 2},
                {"_id": 3, "i": 0, "p": 3},
                {"_id": 4, "i": None},
                {"_id": 5, "i": 0, "p": 9},
            ],
        )

    def test_facets(self):
        [page] = self.db.orders.aggregate(
            [
                {
                    "$facet": {
                        "by state": [{"$sortByCount": "$state"}],
                        "latest": [{"$sort": {"at": -1}}, {"$limit": 2}, {"$project": {"_id": 1}}],
                        "sizes": [
                            {"$bucket": {"groupBy": {"$size": "$lines"}, "boundaries": [0, 1, 2], "default": "many", "output": {"n": {"$sum": 1}, "ids": {"$push": "$_id"}}}}
                        ],
                        "count": [{"$count": "n"}],
                        "nothing": [{"$match": {"state": "none"}}],
                    }
                }
            ]
        )
        self.assertEqual(
            page,
            {
                "by state": [{"_id": "paid", "count": 3}, {"_id": "open", "count": 2}],
                "latest": [{"_id": 5}, {"_id": 4}],
                "sizes": [
                    {"_id": 0, "n": 1, "ids": [4]},
                    {"_id": 1, "n": 3, "ids": [2, 3, 5]},
                    {"_id": "many", "n": 1, "ids": [1]},
                ],
                "count": [{"n": 5}],
                "nothing": [],
            },
        )

    def test_buckets(self):
        self.check(
            "orders",
            [{"$bucketAuto": {"groupBy": "$_id", "buckets": 2}}],
            [{"_id": {"min": 1, "max": 4}, "count": 3}, {"_id": {"min": 4, "max": 5}, "count": 2}],
        )

    def test_out(self):
        self.db.report.insert_one({"_id": "stale"})
        self.db.report.create_index("customer")
        self.check("orders", TOTALS + [{"$out": "report"}], [])
        self.assertEqual([d["_id"] for d in self.db.report.find().sort("_id", 1)], [1, 2, 3])
        # Its indexes stay.
        self.assertEqual(sorted(self.db.report.index_information()), ["_id_", "customer_1"])
        self.check("orders", TOTALS + [{"$out": {"db": self.db.name, "coll": "fresh"}}], [])
        self.assertEqual(self.db.fresh.count_documents({}), 3)

    def test_merge(self):
        merge = {"$merge": {"into": "totals", "on": "_id", "whenMatched": "merge", "whenNotMatched": "insert"}}
        self.db.totals.insert_one({"_id": 1, "note": "kept", "total": 0})
        self.check("orders", TOTALS + [merge], [])
        self.assertEqual(
            self.db.totals.find_one({"_id": 1}),
            {"_id": 1, "note": "kept", "total": Decimal128("52.30"), "customer": "ada"},
        )
        self.assertEqual(self.db.totals.count_documents({}), 3)
        # By a pipeline, as incremental reports do it.
        by_customer = [
            {"$group": {"_id": "$customer", "n": {"$sum": 1}}},
            {"$merge": {"into": "counts", "whenMatched": [{"$set": {"n": {"$add": ["$n", "$$new.n"]}}}]}},
        ]
        self.check("orders", by_customer, [])
        self.check("orders", by_customer, [])
        self.assertEqual(self.db.counts.find_one({"_id": "ada"}), {"_id": "ada", "n": 4})
        with self.refused(13113, "MergeStageNoMatchingDocument"):
            list(self.db.orders.aggregate([{"$merge": {"into": "none", "whenNotMatched": "fail"}}]))
        with self.refused(11000, "DuplicateKey"):
            list(self.db.orders.aggregate([{"$merge": {"into": "orders", "whenMatched": "fail"}}]))

    def test_unions(self):
        self.check(
            "customers",
            [
                {"$project": {"kind": "customer"}},
                {"$unionWith": {"coll": "products", "pipeline": [{"$match": {"kind": "home"}}, {"$project": {"kind": "product"}}]}},
                {"$unionWith": "none"},
                {"$group": {"_id": "$kind", "n": {"$count": {}}}},
                {"$sort": {"_id": 1}},
            ],
            [{"_id": "customer", "n": 4}, {"_id": "product", "n": 2}],
        )

    def test_samples(self):
        found = list(self.db.orders.aggregate([{"$sample": {"size": 3}}]))
        self.assertEqual(len({d["_id"] for d in found}), 3)
        self.assertEqual(len(list(self.db.orders.aggregate([{"$sample": {"size": 50}}]))), 5)

    def test_expressions(self):
        self.check(
            "customers",
            [
                {"$match": {"_id": "ada"}},
                {
                    "$project": {
                        "_id": 0,
                        "label": {"$concat": [{"$toUpper": "$_id"}, " (", "$country", ")"]},
                        "day": {"$dateToString": {"date": "$since", "format": "%Y-%m-%d"}},
                        "age": {"$dateDiff": {"startDate": "$since", "endDate": START, "unit": "day"}},
                        "class": {
                            "$switch": {
                                "branches": [{"case": {"$lt": ["$since", START - 365 * DAY]}, "then": "old"}],
                                "default": "new",
                            }
                        },
                        "squares": {"$map": {"input": {"$range": [1, 4]}, "as": "n", "in": {"$pow": ["$$n", 2]}}},
                        "sum": {"$reduce": {"input": [1, 2, 3], "initialValue": 0, "in": {"$add": ["$$value", "$$this"]}}},
                        "even": {"$filter": {"input": [1, 2, 3, 4], "cond": {"$eq": [{"$mod": ["$$this", 2]}, 0]}}},
                        "number": {"$convert": {"input": "x", "to": "int", "onError": -1}},
                        "gone": {"$cond": [True, "$$REMOVE", 1]},
                    }
                },
            ],
            [
                {
                    "label": "ADA (UK)",
                    "day": "2022-11-27",
                    "age": 400,
                    "class": "old",
                    "squares": [1, 4, 9],
                    "sum": 6,
                    "even": [2, 4],
                    "number": -1,
                }
            ],
        )

    def test_without_a_collection(self):
        self.assertEqual(
            list(self.db.aggregate([{"$documents": [{"a": 1}, {"a": 2}]}, {"$group": {"_id": None, "s": {"$sum": "$a"}}}])),
            [{"_id": None, "s": 3}],
        )

    def test_variables(self):
        self.check(
            "orders",
            [{"$match": {"$expr": {"$lt": ["$_id", "$$most"]}}}, {"$project": {"_id": 1}}, {"$sort": {"_id": 1}}],
            [{"_id": 1}, {"_id": 2}],
            let={"most": 3},
        )

    def test_an_index_is_used(self):
        self.db.orders.create_index("customer")
        explained = self.db.command(
            "explain",
            {"aggregate": "orders", "pipeline": [{"$match": {"customer": "ada"}}, {"$group": {"_id": "$state"}}], "cursor": {}},
            verbosity="queryPlanner",
        )
        self.assertIn("IXSCAN", str(explained))
        self.assertNotIn("COLLSCAN", str(explained))

    def test_mistakes(self):
        for pipeline, code in (
            ([{"$foo": 1}], 40324),
            ([{"$match": {}, "$limit": 1}], 40323),
            ([{"$limit": 0}], 15958),
            ([{"$group": {"n": {"$sum": 1}}}], 15955),
            ([{"$out": "x"}, {"$match": {}}], 40601),
            ([{"$project": {"a": {"$divide": [1, 0]}}}], 2),
            ([{"$project": {"a": {"$toInt": "x"}}}], 241),
            ([{"$project": {"a": {"$nope": "x"}}}], 31325),
            ([{"$unwind": "lines"}], 28818),
            ([{"$lookup": {"from": "x"}}], 9),
        ):
            with self.subTest(pipeline):
                with self.assertRaises(OperationFailure) as caught:
                    list(self.db.orders.aggregate(pipeline))
                self.assertEqual(caught.exception.code, code, caught.exception)

    def test_large_groups(self):
        self.db.n.insert_many([{"_id": i, "g": i % 5000, "v": i} for i in range(20_000)])
        found = list(
            self.db.n.aggregate(
                [
                    {"$group": {"_id": "$g", "sum": {"$sum": "$v"}, "all": {"$push": "$v"}}},
                    {"$match": {"$expr": {"$eq": ["$sum", {"$sum": "$all"}]}}},
                    {"$sort": {"_id": 1}},
                ]
            )
        )
        self.assertEqual(len(found), 5000)
        self.assertEqual(found[7]["all"], [7, 5007, 10007, 15007])

    def test_a_graph(self):
        self.db.staff.insert_many(
            [{"_id": "a"}, {"_id": "b", "boss": "a"}, {"_id": "c", "boss": "b"}, {"_id": "d", "boss": "a"}]
        )
        [found] = self.db.staff.aggregate(
            [
                {"$match": {"_id": "c"}},
                {"$graphLookup": {"from": "staff", "startWith": "$boss", "connectFromField": "boss", "connectToField": "_id", "as": "above", "depthField": "steps"}},
            ]
        )
        self.assertEqual({(d["_id"], d["steps"]) for d in found["above"]}, {("b", 0), ("a", 1)})


if __name__ == "__main__":
    unittest.main()
