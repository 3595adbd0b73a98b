//! What a set is for, as its configuration says it.
//!
//! MongoDB's config servers have `configsvr: true` in the configuration of their set, and shards must not have it. The
//! document server behind a config server does not know what it is for, and refuses the word as any shard does. So it is
//! said here, in front of it:
//!
//! ```text
//!   replSetInitiate, replSetReconfig   `configsvr: true` is taken out, and the rest passed on
//!   replSetGetConfig                   it is put into the answer
//! ```
//!
//! Nobody has to say it: MongoDB wants it in `replSetReconfig`, and adds it itself in `replSetInitiate`. Anything but
//! `true` is passed on, and judged there.

use model::bson::{Doc, DocWriter, ValueRef};
use std::sync::Arc;
use wire::{ConnectionInfo, Handler, Reply, Request};

const FIELD: &str = "configsvr";

/// Whoever answers for a config server, before it is a member of its set and after.
pub struct ConfigRole<H>(pub Arc<H>);

impl<H: Handler> Handler for ConfigRole<H> {
    async fn handle(&self, connection: &Arc<ConnectionInfo>, request: Request) -> Reply {
        match request.name() {
            "replSetInitiate" | "replSetReconfig" => {
                let request = without_role(&request).unwrap_or(request);
                self.0.handle(connection, request).await
            }
            "replSetGetConfig" => with_role(self.0.handle(connection, request).await),
            _ => self.0.handle(connection, request).await,
        }
    }

    fn disconnected(&self, connection: &Arc<ConnectionInfo>) {
        self.0.disconnected(connection);
    }
}

/// The same command without the word, if it has it.
fn without_role(request: &Request) -> Option<Request> {
    let first = request.body().first()?;
    let ValueRef::Document(configuration) = first.value() else {
        return None;
    };
    if configuration.get(FIELD) != Some(ValueRef::Boolean(true)) {
        return None;
    }
    let mut writer = DocWriter::new();
    writer.begin_document(first.key());
    for element in configuration.iter().filter(|field| field.key() != FIELD) {
        writer.append_element(&element);
    }
    writer.end();
    for element in request.body().iter().skip(1) {
        writer.append_element(&element);
    }
    Request::from_parts(writer.finish(), request.sequences().to_vec()).ok()
}

/// The same answer with the word, where MongoDB has it.
fn with_role(reply: Reply) -> Reply {
    let Some(configuration) = reply.document().get_doc("config") else {
        return reply;
    };
    let mut writer = Reply::writer();
    for element in reply.document().iter() {
        if element.key() == "config" {
            append_with_role(&mut writer, configuration);
        } else {
            writer.append_element(&element);
        }
    }
    Reply::from_writer(writer)
}

fn append_with_role(writer: &mut DocWriter, configuration: Doc<'_>) {
    writer.begin_document("config");
    for element in configuration.iter() {
        writer.append_element(&element);
        if element.key() == "members" {
            writer.append(FIELD, true);
        }
    }
    writer.end();
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::bson::DocBuf;
    use parking_lot::Mutex;

    /// Answers everything with a configuration, and keeps what it was asked.
    struct Member(Mutex<Vec<DocBuf>>);

    impl Handler for Member {
        async fn handle(&self, _connection: &Arc<ConnectionInfo>, request: Request) -> Reply {
            self.0.lock().push(request.body().to_owned());
            let mut writer = Reply::writer();
            writer.begin_document("config").append("_id", "c");
            writer.begin_array("members").end();
            writer.append("protocolVersion", 1i64).end();
            Reply::from_writer(writer.with("ok", 1.0))
        }
    }

    #[tokio::test]
    async fn the_word_is_taken_out_and_put_in() {
        let member = Arc::new(Member(Mutex::default()));
        let role = ConfigRole(member.clone());
        let ask = async |name: &str, says: Option<ValueRef<'_>>| {
            let mut command = DocWriter::new();
            command.begin_document(name).append("_id", "c");
            if let Some(says) = says {
                command.append(FIELD, says);
            }
            command.append("version", 2).end().append("force", true);
            let command = command.with("$db", "admin").finish();
            let request = Request::from_parts(command, Vec::new()).expect("a command");
            let connection = Arc::new(ConnectionInfo::in_process(1));
            let reply = role.handle(&connection, request).await;
            let asked = member.0.lock().pop().expect("it is asked");
            (format!("{asked:?}"), format!("{:?}", reply.document()))
        };
        let yes = Some(ValueRef::Boolean(true));
        for name in ["replSetInitiate", "replSetReconfig"] {
            let plain = ask(name, None).await;
            assert_eq!(ask(name, yes).await, plain);
            // Whoever says something else is told what is wrong with it.
            let (asked, _) = ask(name, Some(ValueRef::Int32(1))).await;
            assert!(asked.contains("configsvr: 1"), "{asked}");
        }
        let (_, told) = ask("replSetGetConfig", None).await;
        assert_eq!(
            told,
            "{config: {_id: \"c\", members: [], configsvr: true, protocolVersion: Long(1)}, ok: 1.0}"
        );
        // Nobody else is meant.
        let (asked, told) = ask("replSetStepDown", yes).await;
        assert!(asked.contains("configsvr: true"), "{asked}");
        assert!(!told.contains("configsvr"), "{told}");
    }
}
