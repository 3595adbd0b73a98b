//! What a router has done since its start, and the connections it has, for `serverStatus` and `connPoolStats`.

use crate::Router;
use crate::failure::Failure;
use crate::heartbeat::COMPATIBLE_VERSION;
use crate::hello::now_ms;
use model::bson::{DocWriter, Kind as BsonKind, ValueRef};
use model::number::is_truthy;
use std::collections::BTreeMap;
use wire::{MetricsSnapshot, PoolStatistics, Reply, Request};

impl Router {
    fn metrics(&self) -> MetricsSnapshot {
        let server = self.server.get();
        server.map_or_else(MetricsSnapshot::default, |server| server.metrics())
    }

    /// The connections to shards and to the config server, by host.
    fn pools(&self) -> BTreeMap<String, PoolStatistics> {
        let mut all = self.config.endpoint.pools();
        for shard in self.registry.known() {
            all.extend(shard.endpoint.pools());
        }
        let mut by_host: BTreeMap<String, PoolStatistics> = BTreeMap::new();
        for pool in all {
            let sum = by_host.entry(pool.host.clone()).or_default();
            sum.in_use += pool.in_use;
            sum.available += pool.available;
            sum.created += pool.created;
            sum.host = pool.host;
        }
        by_host
    }
}

fn append_pool(writer: &mut DocWriter, pool: &PoolStatistics) {
    writer
        .append("inUse", pool.in_use as i32)
        .append("available", pool.available as i32)
        .append("leased", 0)
        .append("created", pool.created as i32)
        .append("refreshing", 0);
}

/// Answers `connPoolStats`. The config server's set and those of the shards are watched by their endpoints.
pub(crate) fn connection_pools(router: &Router) -> Reply {
    let pools = router.pools();
    let sum = |of: fn(&PoolStatistics) -> u64| pools.values().map(of).sum::<u64>() as i32;
    let mut writer = Reply::writer();
    let total = (sum(|pool| pool.in_use), sum(|pool| pool.available));
    writer
        .append("numClientConnections", total.0 + total.1)
        .append("numAScopedConnections", 0)
        .append("totalInUse", total.0)
        .append("totalAvailable", total.1)
        .append("totalLeased", 0)
        .append("totalCreated", sum(|pool| pool.created))
        .append("totalRefreshing", 0);
    writer.begin_document("pools").begin_document("global");
    for (host, pool) in &pools {
        writer.begin_document(host);
        append_pool(&mut writer, pool);
        writer.end();
    }
    writer.end().end().begin_document("hosts");
    for (host, pool) in &pools {
        writer.begin_document(host);
        append_pool(&mut writer, pool);
        writer.end();
    }
    writer.end();
    let mut sets: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let of_shards = (router.registry.known()).into_iter().map(|shard| {
        let now = shard.endpoint.connection_string();
        now.unwrap_or_else(|| shard.connection_string.to_string())
    });
    for connection in of_shards.chain(router.config.endpoint.connection_string()) {
        if let Some((name, hosts)) = connection.split_once('/') {
            let hosts = hosts.split(',').map(str::to_owned).collect();
            sets.insert(name.to_owned(), hosts);
        }
    }
    writer
        .append("numReplicaSetMonitorsCreated", sets.len() as i32)
        .begin_document("replicaSets");
    for (name, hosts) in &sets {
        writer.begin_document(name).begin_array("hosts");
        for host in hosts {
            writer.push_document().append("addr", host.as_str()).end();
        }
        writer.end().end();
    }
    writer.end().append("ok", 1.0);
    Reply::from_writer(writer)
}

/// Answers `serverStatus`: everything is of this router. Sections can be left out by name.
pub(crate) fn server_status(router: &Router, request: &Request) -> Result<Reply, Failure> {
    let left_out: Vec<&str> = (request.body().iter().skip(1))
        .filter(|element| !is_truthy(element.value()))
        .map(|element| element.key())
        .collect();
    let mut whole = DocWriter::new();
    append_status(router, &mut whole);
    let mut writer = Reply::writer();
    for element in whole.finish().iter() {
        let is_section = element.kind() == BsonKind::Document;
        if !(is_section && left_out.contains(&element.key())) {
            writer.append_element(&element);
        }
    }
    Ok(Reply::from_writer(writer.with("ok", 1.0)))
}

fn append_status(router: &Router, writer: &mut DocWriter) {
    let (metrics, uptime) = (router.metrics(), router.started.elapsed());
    let cursors = router.cursors.open() as i64;
    writer
        .append("host", router.options.host.as_str())
        .append("version", COMPATIBLE_VERSION)
        .append("process", "mongos")
        .append("pid", i64::from(std::process::id()))
        .append("uptime", uptime.as_secs_f64())
        .append("uptimeMillis", uptime.as_millis() as i64)
        .append("uptimeEstimate", uptime.as_secs() as i64)
        .append("localTime", ValueRef::DateTime(now_ms()))
        .begin_document("connections")
        .append("current", metrics.connections_current as i32)
        .append("available", metrics.connections_available as i32)
        .append("totalCreated", metrics.connections_created as i32)
        .append("active", metrics.connections_active as i32)
        .end();
    writer
        .begin_document("logicalSessionRecordCache")
        .append("activeSessionsCount", router.sessions.active() as i32)
        .end()
        .begin_document("mem")
        .append("bits", usize::BITS as i32)
        .append("resident", resident_mb())
        .append("supported", true)
        .end()
        .begin_document("metrics")
        .begin_document("cursor")
        .append("timedOut", router.cursors.timed_out() as i64)
        .begin_document("open")
        .append("total", cursors)
        .end()
        .end()
        .end()
        .begin_document("network")
        .append("bytesIn", metrics.bytes_in as i64)
        .append("bytesOut", metrics.bytes_out as i64)
        .append("physicalBytesIn", metrics.physical_bytes_in as i64)
        .append("physicalBytesOut", metrics.physical_bytes_out as i64)
        .append("numRequests", metrics.requests as i64)
        .end();
    router.counters.append_to(writer);
    let known = router.routing.statistics();
    writer
        .begin_document("sharding")
        .append("configsvrConnectionString", config_string(router).as_str())
        .end()
        .begin_document("shardingStatistics")
        .begin_document("catalogCache")
        .append("numDatabaseEntries", known.databases as i64)
        .append("numCollectionEntries", known.collections as i64)
        .append("countStaleConfigErrors", known.stale_answers as i64)
        .end()
        .begin_document("elasticScans");
    router.scans.append_to(writer);
    writer.end().end();
    writer.begin_document("cursors").append("open", cursors);
    writer.end();
}

fn config_string(router: &Router) -> String {
    let known = router.config.endpoint.connection_string();
    known.unwrap_or_else(|| "config".to_owned())
}

/// Resident memory of the process in MiB, as the system counts it.
fn resident_mb() -> i32 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    (pages.unwrap_or(0u64) * 4096 / (1024 * 1024)) as i32
}
