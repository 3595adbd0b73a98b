//! Operations as `currentOp` shows them.

use super::{Operation, Progress};
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};

impl Operation {
    /// The document about it, on a `host:port` at a time, with a word on its plan and on how
    /// far it is, if it has them.
    pub fn describe(
        &self,
        host: &str,
        now_ms: i64,
        plan: Option<&str>,
        progress: Option<&Progress>,
    ) -> DocBuf {
        let command = Doc::from_validated(&self.command);
        let running = self.started.elapsed();
        let connection = &self.connection;
        let mut writer = DocWriter::new();
        writer
            .append("type", "op")
            .append("host", host)
            .append("desc", format!("conn{}", connection.id()).as_str())
            .append("connectionId", connection.id() as i32);
        if let Some(peer) = connection.peer() {
            writer.append("client", peer.to_string().as_str());
        }
        if let Some(metadata) = connection.client_metadata() {
            let application = metadata.as_doc().get_doc("application");
            if let Some(name) = application.and_then(|application| application.get_str("name")) {
                writer.append("appName", name);
            }
            writer.append("clientMetadata", metadata);
        }
        writer
            .append("active", true)
            .append("currentOpTime", iso_time(now_ms).as_str())
            .append("threaded", true)
            .append("opid", self.id);
        if let Some(session) = self.session() {
            session.append(&mut writer, "lsid");
        }
        writer
            .append("secs_running", running.as_secs() as i64)
            .append("microsecs_running", running.as_micros() as i64)
            .append("op", kind_of(command))
            .append("ns", namespace_of(command).as_str())
            .append("command", command);
        if let Some(plan) = plan {
            writer.append("planSummary", plan);
        }
        if let Some(progress) = progress {
            progress.append(&mut writer);
        }
        if self.is_killed() {
            writer.append("killPending", true);
        }
        writer
            .append("numYields", 0)
            .begin_document("locks")
            .end()
            .append("waitingForLock", false)
            .begin_document("lockStats")
            .end()
            .append("waitingForFlowControl", false)
            .begin_document("flowControlStats")
            .end();
        writer.finish()
    }
}

fn name_of(command: Doc<'_>) -> &str {
    command.first().map_or("", |element| element.key())
}

fn kind_of(command: Doc<'_>) -> &'static str {
    match name_of(command) {
        "find" => "query",
        "getMore" => "getmore",
        "insert" => "insert",
        "update" => "update",
        "delete" => "remove",
        _ => "command",
    }
}

fn namespace_of(command: Doc<'_>) -> String {
    let database = command.get_str("$db").unwrap_or_default();
    match command
        .first()
        .map(|element| (element.key(), element.value()))
    {
        Some(("getMore", _)) => {
            let collection = command.get_str("collection").unwrap_or("$cmd");
            format!("{database}.{collection}")
        }
        Some(("aggregate" | "currentOp", value)) if value.is_number() => {
            format!("{database}.$cmd.aggregate")
        }
        Some((_, ValueRef::String(collection))) => format!("{database}.{collection}"),
        Some(("explain", ValueRef::Document(explained))) => {
            match explained.first().map(|first| first.value()) {
                Some(ValueRef::String(collection)) => format!("{database}.{collection}"),
                _ => format!("{database}.$cmd"),
            }
        }
        _ => format!("{database}.$cmd"),
    }
}

/// Milliseconds since 1970 as `2026-11-15T21:09:10.453+00:00`.
fn iso_time(now_ms: i64) -> String {
    let (days, in_day) = (now_ms.div_euclid(86_400_000), now_ms.rem_euclid(86_400_000));
    // Years begin in March here, so that the leap day is their last.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute) = (in_day / 3_600_000, in_day / 60_000 % 60);
    let (second, milli) = (in_day / 1_000 % 60, in_day % 1_000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}+00:00")
}

#[cfg(test)]
mod tests {
    use super::iso_time;

    #[test]
    fn times_as_text() {
        for (now_ms, text) in [
            (0, "1970-01-01T00:00:00.000+00:00"),
            (1_577_836_800_000, "2020-01-01T00:00:00.000+00:00"),
            (1_709_210_096_789, "2024-02-29T12:34:56.789+00:00"),
            (-1, "1969-12-31T23:59:59.999+00:00"),
        ] {
            assert_eq!(iso_time(now_ms), text);
        }
    }
}
