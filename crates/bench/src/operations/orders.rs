//! Operations on orders: by a secondary index, aggregated, and all of them.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use bson::{Document, doc};
use fastrand::Rng;

use crate::command::{Request, Slot, marker};
use crate::connection::Connection;
use crate::dataset::{self, ORDERS};
use crate::operations::{Done, Operation, Setting};
use crate::reply;

const SCAN_BATCH: i32 = 1_000;

/// All orders of one customer.
pub struct LookUpByIndex {
    setting: Arc<Setting>,
    request: Request,
    customer: Slot,
}

impl LookUpByIndex {
    pub fn new(setting: &Arc<Setting>, random: &mut Rng) -> Result<LookUpByIndex> {
        let find = doc! {
            "find": ORDERS,
            "filter": { "customer": marker::text(dataset::CUSTOMER_BYTES) },
        };
        let request = Request::new(&setting.command(find, random))?;
        Ok(LookUpByIndex {
            setting: Arc::clone(setting),
            customer: request.slot(marker::text(dataset::CUSTOMER_BYTES).as_bytes())?,
            request,
        })
    }
}

impl Operation for LookUpByIndex {
    fn perform(&mut self, connection: &mut Connection, random: &mut Rng) -> Result<Done> {
        let customer = dataset::customer(random.u64(..self.setting.dataset.customers()));
        self.request.patch(&self.customer, customer.as_bytes());
        let batch = reply::expect_batch(connection.exchange(&mut self.request)?)?;
        ensure!(
            batch.cursor == 0 && batch.count()? == dataset::ORDERS_PER_CUSTOMER,
            "{customer} should have {} orders, {} came back",
            dataset::ORDERS_PER_CUSTOMER,
            batch.count()?
        );
        Ok(Done::Units(1))
    }
}

/// `$match` on one field, `$group` by region; the counts must add up to the documents that match.
pub struct Aggregate {
    request: Request,
    slot: Slot,
    name: fn(u64) -> String,
    values: u64,
    documents_per_value: u64,
}

impl Aggregate {
    pub fn new(
        setting: &Arc<Setting>,
        field: &str,
        name: fn(u64) -> String,
        values: u64,
        random: &mut Rng,
    ) -> Result<Aggregate> {
        let placeholder = marker::text(name(0).len());
        let aggregate = doc! {
            "aggregate": ORDERS,
            "pipeline": [
                { "$match": { field: &placeholder } },
                { "$group": {
                    "_id": "$region",
                    "total": { "$sum": "$amount" },
                    "count": { "$sum": 1 },
                } },
            ],
            "cursor": {},
        };
        let request = Request::new(&setting.command(aggregate, random))?;
        Ok(Aggregate {
            slot: request.slot(placeholder.as_bytes())?,
            request,
            name,
            values,
            documents_per_value: setting.dataset.records / values,
        })
    }
}

impl Operation for Aggregate {
    fn perform(&mut self, connection: &mut Connection, random: &mut Rng) -> Result<Done> {
        let value = (self.name)(random.u64(..self.values));
        self.request.patch(&self.slot, value.as_bytes());
        let batch = reply::expect_batch(connection.exchange(&mut self.request)?)?;
        let (groups, documents) = (batch.count()?, batch.sum("count")?);
        ensure!(
            groups == dataset::REGIONS && documents == self.documents_per_value as f64,
            "{value}: {documents} documents in {groups} groups, expected {} in {}",
            self.documents_per_value,
            dataset::REGIONS
        );
        Ok(Done::Units(1))
    }
}

/// The whole collection again and again; one batch is one operation, documents are the unit.
pub struct ScanAll {
    orders: u64,
    find: Request,
    get_more: Request,
    kill: Request,
    /// The cursor's place in getMore and in killCursors.
    cursor_slots: [Slot; 2],
    /// The open cursor, 0 when the next request begins a scan.
    cursor: i64,
    seen: u64,
}

impl ScanAll {
    pub fn new(setting: &Arc<Setting>, random: &mut Rng) -> Result<ScanAll> {
        const CURSOR: i64 = 0x7e57_1e55_c0de_cafe;
        // All three belong to one session, as a driver's cursor does.
        let session = random.get_seed();
        let command = |command: Document| {
            Request::new(&setting.command(command, &mut Rng::with_seed(session)))
        };
        let find = command(doc! { "find": ORDERS, "filter": {}, "batchSize": SCAN_BATCH })?;
        let get_more =
            command(doc! { "getMore": CURSOR, "collection": ORDERS, "batchSize": SCAN_BATCH })?;
        let kill = command(doc! { "killCursors": ORDERS, "cursors": [CURSOR] })?;
        let cursor_slots = [
            get_more.slot(&CURSOR.to_le_bytes())?,
            kill.slot(&CURSOR.to_le_bytes())?,
        ];
        Ok(ScanAll {
            orders: setting.dataset.records,
            find,
            get_more,
            kill,
            cursor_slots,
            cursor: 0,
            seen: 0,
        })
    }
}

impl Operation for ScanAll {
    fn perform(&mut self, connection: &mut Connection, _random: &mut Rng) -> Result<Done> {
        let request = if self.cursor == 0 {
            self.seen = 0;
            &mut self.find
        } else {
            self.get_more
                .patch(&self.cursor_slots[0], &self.cursor.to_le_bytes());
            &mut self.get_more
        };
        let batch = reply::expect_batch(connection.exchange(request)?)?;
        let count = batch.count()?;
        self.seen += count;
        self.cursor = batch.cursor;
        ensure!(
            self.cursor != 0 || self.seen == self.orders,
            "a scan returned {} of {} documents",
            self.seen,
            self.orders
        );
        Ok(Done::Units(count))
    }

    fn finish(&mut self, connection: &mut Connection) -> Result<()> {
        if self.cursor != 0 {
            self.kill
                .patch(&self.cursor_slots[1], &self.cursor.to_le_bytes());
            self.cursor = 0;
            reply::expect_ok(connection.exchange(&mut self.kill)?)?;
        }
        Ok(())
    }
}

/// Another quantity for one order. No index knows of it.
pub struct UpdateOrder {
    setting: Arc<Setting>,
    request: Request,
    key: Slot,
    quantity: Slot,
}

impl UpdateOrder {
    pub fn new(setting: &Arc<Setting>, random: &mut Rng) -> Result<UpdateOrder> {
        let command = setting.write(doc! { "update": ORDERS, "ordered": true }, random);
        let update = doc! {
            "q": { "_id": marker::LONG },
            "u": { "$set": { "quantity": marker::NUMBER } },
        };
        let (request, _) = Request::with_sequence(&command, "updates", &[update.to_vec()?])?;
        Ok(UpdateOrder {
            setting: Arc::clone(setting),
            key: request.slot(&marker::LONG.to_le_bytes())?,
            quantity: request.number_slot()?,
            request,
        })
    }
}

impl Operation for UpdateOrder {
    fn perform(&mut self, connection: &mut Connection, random: &mut Rng) -> Result<Done> {
        let number = random.u64(..self.setting.dataset.records);
        self.request.patch(&self.key, &number.to_le_bytes());
        self.request
            .patch_number(&self.quantity, random.i32(20..i32::MAX));
        reply::expect_count(connection.exchange(&mut self.request)?, 1)
            .with_context(|| format!("updating order number {number}"))?;
        // The documents that scans return are what is counted.
        Ok(Done::Units(0))
    }
}
