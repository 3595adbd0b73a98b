//! The documents that the workloads run over.
//!
//! - `usertable`: YCSB's records, `_id` "user" and twenty digits (record numbers are scattered, so
//!   that neighbours in time are not neighbours in key order), and ten fields of 100 characters.
//! - `orders`: for secondary indexes, aggregation and scans. Its number is a multiple of 1,000, and
//!   every value is a function of the order's number, so that each query's answer is known:
//!
//!   | field | value | documents per value | index |
//!   | --- | --- | --- | --- |
//!   | `customer` | number modulo orders / 10 | 10 | yes |
//!   | `category` | number modulo 100 | orders / 100 | yes |
//!   | `kind` | number modulo 5 | orders / 5 | no |
//!   | `region` | number / 100 modulo 10 | orders / 10, all ten in each category and kind | no |
//!
//! - `scratch_…`: empty at the start of an insert or load measurement, dropped after it.
//!
//! Text is drawn from a pool of random letters and digits, so it hardly compresses: on-disk sizes show
//! the servers' own overhead, as YCSB's random fields do.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use bson::{Document, doc};
use fastrand::Rng;

use crate::command::marker;
use crate::zipfian::{Zipfian, scatter};

pub const DATABASE: &str = "bench";
pub const USERS: &str = "usertable";
pub const ORDERS: &str = "orders";

pub const FIELDS: usize = 10;
pub const FIELD_BYTES: usize = 100;
pub const KEY_BYTES: usize = 24;
pub const CUSTOMER_BYTES: usize = 16;

pub const ORDERS_PER_CUSTOMER: u64 = 10;
pub const CATEGORIES: u64 = 100;
pub const KINDS: u64 = 5;
pub const REGIONS: u64 = 10;
/// Record counts are multiples of this, so that every value has the same number of documents.
pub const RECORDS_STEP: u64 = 1_000;

/// What one server holds, as far as the client knows.
#[derive(Debug)]
pub struct Dataset {
    /// Users and orders after loading.
    pub records: u64,
    pub users: Acknowledged,
    zipfian: Zipfian,
    texts: TextPool,
}

impl Dataset {
    pub fn new(records: u64) -> Dataset {
        assert!(
            records > 0 && records.is_multiple_of(RECORDS_STEP),
            "record counts are multiples of {RECORDS_STEP}"
        );
        Dataset {
            records,
            users: Acknowledged::starting_at(records),
            zipfian: Zipfian::new(records),
            texts: TextPool::new(),
        }
    }

    pub fn any_user(&self, random: &mut Rng) -> u64 {
        self.zipfian.scrambled(self.users.count(), random)
    }

    pub fn recent_user(&self, random: &mut Rng) -> u64 {
        self.zipfian.latest(self.users.count(), random)
    }

    pub fn text(&self, random: &mut Rng) -> &[u8] {
        self.texts.slice(random)
    }

    pub fn order(&self, number: u64, random: &mut Rng) -> Document {
        let note = String::from_utf8_lossy(self.text(random)).into_owned();
        doc! {
            "_id": number as i64,
            "customer": customer(number % self.customers()),
            "category": category(number % CATEGORIES),
            "kind": kind(number % KINDS),
            "region": format!("region{}", number / 100 % REGIONS),
            "amount": (random.u32(100..100_000) as f64) / 100.0,
            "quantity": random.i32(1..20),
            "note": note,
        }
    }

    pub fn customers(&self) -> u64 {
        self.records / ORDERS_PER_CUSTOMER
    }
}

pub fn customer(number: u64) -> String {
    format!("customer{number:08}")
}

pub fn category(number: u64) -> String {
    format!("category{number:03}")
}

pub fn kind(number: u64) -> String {
    format!("kind{number:02}")
}

/// The `_id` of a user, by its number in order of insertion.
pub fn user_key(number: u64) -> [u8; KEY_BYTES] {
    let mut key = *b"user00000000000000000000";
    let mut rest = scatter(number);
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

/// A user with markers for its key and its fields' values. All values have the same marker: where
/// each begins follows from [`user_value_offsets`].
pub fn user_template() -> Result<Vec<u8>> {
    let mut user = doc! { "_id": marker::text(KEY_BYTES) };
    for field in 0..FIELDS {
        user.insert(format!("field{field}"), "#".repeat(FIELD_BYTES));
    }
    Ok(user.to_vec()?)
}

/// Where the value of each field begins in the template.
pub fn user_value_offsets(template: &[u8]) -> Vec<usize> {
    let value = [b'#'; FIELD_BYTES];
    let mut offsets = Vec::with_capacity(FIELDS);
    let mut position = 0;
    while position + FIELD_BYTES <= template.len() {
        if template[position..position + FIELD_BYTES] == value {
            offsets.push(position);
            position += FIELD_BYTES;
        } else {
            position += 1;
        }
    }
    assert_eq!(offsets.len(), FIELDS, "a user has a value for each field");
    offsets
}

/// Random letters and digits; a value is a slice at a random place, which costs one copy.
#[derive(Debug)]
pub struct TextPool(Vec<u8>);

impl TextPool {
    const BYTES: usize = 256 * 1024;

    pub fn new() -> TextPool {
        let mut random = Rng::with_seed(0x7e57);
        TextPool(
            (0..TextPool::BYTES)
                .map(|_| random.alphanumeric() as u8)
                .collect(),
        )
    }

    pub fn slice(&self, random: &mut Rng) -> &[u8] {
        let start = random.usize(..TextPool::BYTES - FIELD_BYTES);
        &self.0[start..start + FIELD_BYTES]
    }
}

/// Numbers given to inserts, and how many from the start were acknowledged.
///
/// Readers draw below the acknowledged count, so that a read never asks for a record whose insert is
/// still on its way.
///
/// ```text
///  0 ………………………… count ……………… next
///  all acknowledged    some     none given
/// ```
#[derive(Debug)]
pub struct Acknowledged {
    next: AtomicU64,
    count: AtomicU64,
    /// Acknowledged out of order, above `count`.
    above: Mutex<BTreeSet<u64>>,
}

impl Acknowledged {
    pub fn starting_at(count: u64) -> Acknowledged {
        Acknowledged {
            next: AtomicU64::new(count),
            count: AtomicU64::new(count),
            above: Mutex::new(BTreeSet::new()),
        }
    }

    pub fn take(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub fn acknowledge(&self, number: u64) {
        let mut above = self.above.lock().unwrap_or_else(PoisonError::into_inner);
        above.insert(number);
        let mut count = self.count.load(Ordering::Relaxed);
        while above.remove(&count) {
            count += 1;
        }
        self.count.store(count, Ordering::Release);
    }

    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn acknowledged_counts_only_the_gapless_start() {
        let users = Acknowledged::starting_at(10);
        let given: Vec<u64> = (0..4).map(|_| users.take()).collect();
        assert_eq!(given, [10, 11, 12, 13]);
        for (number, count) in [(12, 10), (10, 11), (13, 11), (11, 14)] {
            users.acknowledge(number);
            assert_eq!(users.count(), count, "after {number}");
        }
    }

    #[test]
    fn keys_are_padded_and_distinct() {
        let first = user_key(0);
        assert_eq!(&first[..4], b"user");
        assert!(first[4..].iter().all(u8::is_ascii_digit));
        assert_ne!(first, user_key(1));
    }

    #[test]
    fn every_order_query_has_its_known_answer() {
        let dataset = Dataset::new(3_000);
        let mut random = Rng::with_seed(1);
        let mut groups: BTreeMap<(String, String), u64> = BTreeMap::new();
        let mut customers: BTreeMap<String, u64> = BTreeMap::new();
        for number in 0..dataset.records {
            let order = dataset.order(number, &mut random);
            let text = |name: &str| order.get_str(name).expect("a string").to_owned();
            *groups
                .entry((text("category"), text("region")))
                .or_default() += 1;
            *groups.entry((text("kind"), text("region"))).or_default() += 1;
            *customers.entry(text("customer")).or_default() += 1;
        }
        for number in 0..CATEGORIES {
            let of_category = groups.range((category(number), String::new())..);
            let regions: Vec<u64> = of_category
                .take_while(|((name, _), _)| *name == category(number))
                .map(|(_, count)| *count)
                .collect();
            assert_eq!(regions.len() as u64, REGIONS);
            assert_eq!(regions.iter().sum::<u64>(), dataset.records / CATEGORIES);
        }
        assert!(
            customers
                .values()
                .all(|&count| count == ORDERS_PER_CUSTOMER)
        );
        assert_eq!(customer(0).len(), CUSTOMER_BYTES);
        assert_eq!(category(0).len(), category(CATEGORIES - 1).len());
        assert_eq!(kind(0).len(), kind(KINDS - 1).len());
    }

    #[test]
    fn the_template_has_a_value_for_each_field() {
        let template = user_template().expect("a template");
        assert_eq!(user_value_offsets(&template).len(), FIELDS);
    }
}
