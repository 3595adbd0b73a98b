//! `local.system.replset`: the set's configuration, as the one document that tools expect
//! there.

use crate::Shard;
use crate::read::{Query, VirtualCollection, VirtualSource};
use model::bson::DocBuf;
use model::{Code, Error};
use query::plan::ScanDirection;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct ConfigurationCollection;

impl VirtualCollection for ConfigurationCollection {
    fn namespace(&self) -> &'static str {
        "local.system.replset"
    }

    fn open(
        &self,
        shard: &Arc<Shard>,
        _query: &Query,
        _direction: ScanDirection,
    ) -> Result<Box<dyn VirtualSource>, Error> {
        let configuration = shard.replica_set.configuration();
        Ok(Box::new(Once(configuration.map(|it| it.to_document()))))
    }

    fn count(&self, shard: &Shard) -> Option<u64> {
        Some(u64::from(shard.replica_set.configuration().is_some()))
    }

    fn refusal(&self, command: &str) -> Error {
        Error::new(
            Code::INVALID_NAMESPACE,
            format!("{command} is not allowed on {}", self.namespace()),
        )
    }
}

struct Once(Option<DocBuf>);

impl VirtualSource for Once {
    fn next(&mut self, _shard: &Shard) -> Result<Option<DocBuf>, Error> {
        Ok(self.0.take())
    }
}
