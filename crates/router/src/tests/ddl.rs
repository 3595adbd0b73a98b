//! Commands that change the catalog while the config server loses its primary.

use super::fake_config::Lost;
use super::world::World;
use super::{int, run};
use model::bson::{DocBuf, DocWriter, ValueRef};
use model::error::{Code, Error};
use std::collections::BTreeSet;

fn rename() -> DocWriter {
    DocWriter::new()
        .with("renameCollection", "test.birds")
        .with("to", "test.terns")
        .with("$db", "admin")
}

/// The ids that were asked with.
fn ids(world: &World) -> BTreeSet<Vec<u8>> {
    let asked = &world.config.ddl.lock().asked;
    let ids = asked.iter().map(|body| match body.get("operation") {
        Some(ValueRef::Binary { bytes, .. }) => bytes.to_vec(),
        other => panic!("{other:?} is no id"),
    });
    ids.collect()
}

#[test]
fn a_command_survives_lost_primaries() {
    run(async {
        let world = World::new();
        for losses in [
            vec![],
            vec![Lost::Connection],
            vec![Lost::Absent],
            vec![Lost::Primary],
            vec![Lost::Absent, Lost::Connection, Lost::Absent, Lost::Primary],
        ] {
            let carried_out = {
                let mut ddl = world.config.ddl.lock();
                ddl.losses = losses.clone().into();
                ddl.asked.clear();
                ddl.carried_out()
            };
            let reply = world.run(rename().finish()).await;
            assert_eq!(reply.get("ok"), Some(1.0.into()), "{losses:?}: {reply:?}");
            // Carried out once, under one id, and this is what came of it.
            assert_eq!(int(&reply, "number"), carried_out as i32 + 1, "{losses:?}");
            let ddl = world.config.ddl.lock();
            assert_eq!(ddl.carried_out(), carried_out + 1, "{losses:?}");
            assert_eq!(ddl.asked.len(), losses.len() + 1);
            drop(ddl);
            assert_eq!(ids(&world).len(), 1, "{losses:?}");
        }
    });
}

/// What the config server says is not asked again, also if it speaks of others that cannot be reached.
#[test]
fn an_answer_is_an_answer() {
    run(async {
        let world = World::new();
        for code in [Code::NAMESPACE_NOT_FOUND, Code::HOST_UNREACHABLE] {
            let refusal = Error::new(code, "no");
            {
                let mut ddl = world.config.ddl.lock();
                ddl.losses = [Lost::Connection].into();
                ddl.refusal = Some(refusal);
                ddl.asked.clear();
            }
            let reply = world.run(rename().finish()).await;
            assert_eq!(int(&reply, "code"), code.0);
            assert_eq!(world.config.ddl.lock().asked.len(), 2);
        }
    });
}

#[test]
fn nobody_asks_beyond_the_limit_of_its_client() {
    run(async {
        let world = World::new();
        let absent = [Lost::Absent; 1000];
        world.config.ddl.lock().losses = absent.into();
        let reply = world.run(rename().with("maxTimeMS", 50).finish()).await;
        assert_eq!(int(&reply, "code"), Code::MAX_TIME_MS_EXPIRED.0);
        let limits: Vec<i64> = {
            let ddl = world.config.ddl.lock();
            let limit = |body: &DocBuf| match body.as_doc().get_doc("command")?.get("maxTimeMS")? {
                ValueRef::Int64(limit) => Some(limit),
                _ => None,
            };
            ddl.asked.iter().filter_map(limit).collect()
        };
        // Each time the config server is told what is left.
        assert_eq!(limits.len(), world.config.ddl.lock().asked.len());
        assert!(limits.len() > 1 && limits.iter().all(|limit| (1..=50).contains(limit)));
        assert!(limits.is_sorted_by(|a, b| a >= b), "{limits:?}");
        assert_eq!(world.config.ddl.lock().carried_out(), 0);
    });
}
