//! The random source: values, fields, paths and documents from a small vocabulary.

use crate::value::{Fields, Value, field};

/// Field names, by what they usually hold.
pub const NUMBER: &str = "n";
pub const STRING: &str = "s";
pub const ARRAY: &str = "r";
pub const OBJECT: &str = "o";
pub const DATE: &str = "d";
const ANYTHING: [&str; 2] = ["a", "b"];

pub struct Source {
    random: fastrand::Rng,
    /// The values of the documents made so far, by top-level field: what a filter may hope to find.
    seen: Vec<(String, Value)>,
}

impl Source {
    pub fn new(seed: u64) -> Source {
        Source {
            random: fastrand::Rng::with_seed(seed),
            seen: Vec::new(),
        }
    }

    /// A number from 0 up to, but not including, the bound.
    pub fn below(&mut self, bound: usize) -> usize {
        self.random.usize(..bound)
    }

    pub fn between(&mut self, from: i32, to: i32) -> i32 {
        self.random.i32(from..=to)
    }

    /// True in so many of a hundred cases.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    pub fn word(&mut self, words: &[&'static str]) -> &'static str {
        words[self.below(words.len())]
    }

    pub fn documents(&mut self) -> Vec<Fields> {
        let count = self.between(1, 14);
        let documents: Vec<Fields> = (1..=count).map(|id| self.document(id)).collect();
        for (name, value) in documents.iter().flatten() {
            remember(name, value, &mut self.seen);
        }
        documents
    }

    /// A value that some document has under this top-level field, at any depth.
    pub fn seen(&mut self, name: &str) -> Option<Value> {
        let count = self.seen.iter().filter(|(seen, _)| seen == name).count();
        let chosen = if count == 0 {
            return None;
        } else {
            self.below(count)
        };
        self.seen
            .iter()
            .filter(|(seen, _)| seen == name)
            .nth(chosen)
            .map(|(_, value)| value.clone())
    }

    fn document(&mut self, id: i32) -> Fields {
        let mut fields = vec![field("_id", id)];
        for name in [
            NUMBER,
            STRING,
            ARRAY,
            OBJECT,
            DATE,
            ANYTHING[0],
            ANYTHING[1],
        ] {
            match self.below(20) {
                0..3 => {}
                3 => fields.push(field(name, Value::Null)),
                4 => fields.push((name.to_owned(), self.value(2))),
                _ => fields.push((name.to_owned(), self.habitual(name))),
            }
        }
        fields
    }

    /// What a field usually holds.
    pub fn habitual(&mut self, name: &str) -> Value {
        match name {
            NUMBER => self.number(),
            STRING => self.string(),
            ARRAY => self.array(),
            OBJECT => Value::Document(self.object(2)),
            DATE => self.date(),
            _ => self.value(2),
        }
    }

    pub fn number(&mut self) -> Value {
        let small = self.between(-2, 5);
        match self.below(20) {
            0..9 => Value::Int32(small),
            9..12 => Value::Int64(i64::from(small)),
            12..15 => Value::Double(f64::from(small)),
            15 => Value::Double(f64::from(small) + 0.5),
            16 => decimal(&small.to_string()),
            17 => decimal(&format!("{small}.50")),
            18 => Value::Int64(*self.pick(&[
                2147483648,
                9007199254740993,
                i64::MAX,
                i64::MIN,
                4294967296,
            ])),
            _ => match self.below(6) {
                0 => Value::Double(f64::NAN),
                1 => Value::Double(f64::INFINITY),
                2 => Value::Double(-0.0),
                3 => Value::Int32(i32::MAX),
                4 => Value::Double(1e20),
                _ => decimal("1E+10"),
            },
        }
    }

    pub fn string(&mut self) -> Value {
        Value::from(self.word(&[
            "", "a", "b", "ab", "abc", "A", "ba", "a b", "ä", "1", "10", "2.5", "a,b",
        ]))
    }

    pub fn date(&mut self) -> Value {
        Value::Date(*self.pick(&[
            0,
            -1,
            1,
            86_400_000,
            1_706_659_199_999,
            1_709_208_000_123,
            1_711_846_800_000,
            -2_208_988_800_000,
        ]))
    }

    pub fn array(&mut self) -> Value {
        let count = self.below(5);
        let same = self.below(4);
        let item = |source: &mut Source| match same {
            0 | 1 => source.number(),
            2 => Value::Document(source.object(1)),
            _ => source.value(1),
        };
        Value::Array((0..count).map(|_| item(self)).collect())
    }

    pub fn object(&mut self, depth: usize) -> Fields {
        let mut fields: Fields = Vec::new();
        for name in ["a", "b", "c", "0"] {
            let percent = if name == "0" { 5 } else { 45 };
            if self.chance(percent) {
                fields.push((name.to_owned(), self.value(depth.saturating_sub(1))));
            }
        }
        fields
    }

    /// Anything, nested at most so deep.
    pub fn value(&mut self, depth: usize) -> Value {
        match self.below(if depth == 0 { 16 } else { 22 }) {
            0..6 => self.number(),
            6..10 => self.string(),
            10 | 11 => Value::Null,
            12 => Value::Bool(self.chance(50)),
            13 => self.date(),
            14 => Value::ObjectId([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, self.below(3) as u8]),
            15 => match self.below(8) {
                0 => Value::Undefined,
                1 => Value::MinKey,
                2 => Value::MaxKey,
                3 => Value::Regex("a".to_owned(), String::new()),
                4 => Value::Timestamp(5, self.below(2) as u32),
                5 => Value::Binary(0, vec![self.below(3) as u8]),
                6 => Value::Symbol("a".to_owned()),
                _ => Value::Code("a".to_owned()),
            },
            16..19 => {
                let count = self.below(4);
                Value::Array((0..count).map(|_| self.value(depth - 1)).collect())
            }
            _ => Value::Document(self.object(depth)),
        }
    }

    /// A top-level field.
    pub fn name(&mut self) -> &'static str {
        self.word(&[
            NUMBER, STRING, ARRAY, OBJECT, DATE, "a", "a", "b", "b", "_id",
        ])
    }

    /// A path, sometimes into documents and arrays.
    pub fn path(&mut self) -> String {
        match self.below(10) {
            0..5 => self.name().to_owned(),
            5 | 6 => self.word(&["o.a", "o.b", "o.c", "o.a.b"]).to_owned(),
            7 => self.word(&["r.a", "r.b", "r.0", "r.1", "r.0.a"]).to_owned(),
            8 => self
                .word(&["a.a", "a.b", "a.0", "b.a", "b.c", "b.0.b"])
                .to_owned(),
            _ => self.word(&["z", "z.y", "n.a", "s.0"]).to_owned(),
        }
    }

    /// A sort without ties: the last field is `_id`.
    pub fn sort(&mut self) -> Value {
        let mut fields: Fields = Vec::new();
        for _ in 0..self.between(0, 2) {
            let path = self.path();
            let clashes = fields.iter().any(|(name, _)| *name == path) || path == "_id";
            // Two arrays at once cannot be sorted by; that is an error in both, and soon boring.
            if !clashes {
                let direction = if self.chance(50) { 1 } else { -1 };
                fields.push(field(&path, direction));
            }
        }
        fields.push(field("_id", if self.chance(70) { 1 } else { -1 }));
        Value::Document(fields)
    }
}

fn remember(name: &str, value: &Value, seen: &mut Vec<(String, Value)>) {
    seen.push((name.to_owned(), value.clone()));
    match value {
        Value::Document(fields) => fields
            .iter()
            .for_each(|(_, nested)| remember(name, nested, seen)),
        Value::Array(items) => items.iter().for_each(|nested| remember(name, nested, seen)),
        _ => {}
    }
}

pub fn decimal(text: &str) -> Value {
    text.parse::<bson::Decimal128>()
        .map_or(Value::Null, |decimal| Value::Decimal(decimal.bytes()))
}
