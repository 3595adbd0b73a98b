//! How a set begins: its first configuration, and a member that has moved.
//!
//! A shard that was never configured becomes a set of one, so that whoever starts a server has one to
//! write to. The only member of a set may come back under another address (another port, say): it is
//! certain to be the same member, so the configuration follows it. With several members the
//! configuration decides, and a host that it does not name is not a member.

use super::ReplicaSetOptions;
use super::configuration::{CONFIGURATION_KEY, Configuration, read_host};
use crate::Shard;
use model::Error;

impl Shard {
    /// Takes part in the replica set under this name and address. Called once, before serving.
    pub async fn join_replica_set(&self, options: &ReplicaSetOptions) -> Result<(), Error> {
        let host = read_host(&options.host)?;
        // A second call would be a mistake of the caller, and has no effect.
        let _ = self.replica_set.host.set(host.clone());
        let stored = self.replica_set.configuration();
        let next = match stored.as_deref() {
            None => Configuration::first(&options.name, &[host], self.new_object_id()),
            Some(stored) if stored.name != options.name => {
                return Err(Error::new(
                    model::Code::INVALID_REPLICA_SET_CONFIG,
                    format!(
                        "the data belongs to the replica set {:?}, not to {:?}",
                        stored.name, options.name
                    ),
                ));
            }
            Some(stored) => match stored.members.as_slice() {
                [only] if only.host != host => {
                    let mut moved = stored.clone();
                    moved.version = moved.version.saturating_add(1);
                    moved.members[0].host = host;
                    moved
                }
                _ => return Ok(()),
            },
        };
        self.store_configuration(next).await
    }

    /// Makes a configuration the one that holds, through the log.
    pub(crate) async fn store_configuration(
        &self,
        mut configuration: Configuration,
    ) -> Result<(), Error> {
        configuration.term = i64::try_from(self.log.term().get()).unwrap_or(i64::MAX);
        let document = configuration.to_document();
        self.propose_catalog(|encoder| encoder.put_meta(CONFIGURATION_KEY, document.as_bytes()))
            .await
    }
}
