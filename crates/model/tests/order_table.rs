//! Order, keys and hashes of a table of values that a real server has sorted.
//!
//! The table holds every BSON type but DBPointer, whose namespace the server
//! ignores in one of its two comparisons.

use model::bson::{Doc, DocBuf, ValueRef};
use model::hash::hash_value;
use model::key::{Direction, KeyBuilder, decode};
use model::order;
use std::cmp::Ordering;

struct Row {
    note: &'static str,
    /// Equal rows have the same rank.
    rank: usize,
    document: DocBuf,
}

impl Row {
    fn value(&self) -> ValueRef<'_> {
        self.document.get("").expect("the row holds one value")
    }
}

fn from_hex(hex: &str) -> Vec<u8> {
    if hex == "-" {
        return Vec::new();
    }
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("the table holds hex"))
        .collect()
}

fn rows() -> Vec<Row> {
    let mut rank = 0;
    include_str!("data/order.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (fields, note) = line.split_once(" # ").expect("a row has a note");
            let fields: Vec<&str> = fields.split(' ').collect();
            let [relation, tag, value] = fields[..] else {
                panic!("a row has three fields: {line}");
            };
            rank += usize::from(relation == "<");
            let mut bytes = vec![0; 4];
            bytes.extend(from_hex(tag));
            bytes.push(0);
            bytes.extend(from_hex(value));
            bytes.push(0);
            let length = bytes.len() as i32;
            bytes[..4].copy_from_slice(&length.to_le_bytes());
            let document = Doc::from_bytes(&bytes)
                .expect("the table holds BSON")
                .to_owned();
            Row {
                note,
                rank,
                document,
            }
        })
        .collect()
}

#[test]
fn order_equals_the_servers() {
    let rows = rows();
    assert!(rows.len() > 150);
    for left in &rows {
        for right in &rows {
            let expected = left.rank.cmp(&right.rank);
            let compared = order::compare(left.value(), right.value());
            assert_eq!(compared, expected, "{} and {}", left.note, right.note);
            if expected == Ordering::Equal {
                assert_eq!(hash_value(left.value()), hash_value(right.value()));
            }
        }
    }
}

#[test]
fn keys_are_ordered_as_the_server_orders_values() {
    let rows = rows();
    for direction in [Direction::Ascending, Direction::Descending] {
        let keys: Vec<Vec<u8>> = rows
            .iter()
            .map(|row| {
                let mut builder = KeyBuilder::new();
                builder.push(row.value(), direction);
                let (key, type_bits) = builder.finish();
                let decoded = decode(&key, &type_bits, &[direction]).expect("own keys decode");
                assert_eq!(format!("{decoded:?}"), format!("[{:?}]", row.value()));
                key
            })
            .collect();
        for (left, left_key) in rows.iter().zip(&keys) {
            for (right, right_key) in rows.iter().zip(&keys) {
                let expected = match direction {
                    Direction::Ascending => left.rank.cmp(&right.rank),
                    Direction::Descending => right.rank.cmp(&left.rank),
                };
                assert_eq!(
                    left_key.cmp(right_key),
                    expected,
                    "{} and {}",
                    left.note,
                    right.note
                );
            }
        }
    }
}
