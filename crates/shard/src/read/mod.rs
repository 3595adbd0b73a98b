use crate::Shard; use crate::catalog::Collection; use crate::operation::Operation; use model::Error; use model::bson::Value; use model::key::RecordKey; use query::context::QueryContext; use query::filter::Filter; use query::sort::SortPattern; use std::sync::Arc;
pub(crate) struct Candidates;
impl Candidates { pub(crate) fn new(_: &Arc<Shard>, _: &Arc<Collection>, _: &Filter, _: Option<&SortPattern>, _: Option<&Value>, _: &QueryContext) -> Result<Self, Error> { Ok(Self) }
pub(crate) fn next_keys(&mut self, _: usize, _: &Operation) -> Result<Vec<RecordKey>, Error> { Ok(vec![]) } }
