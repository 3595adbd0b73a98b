//! A pipeline as the source of a cursor's batches.

use super::{ShardEnvironment, while_running};
use crate::cursor::{Batch, BatchSource, Filled};
use crate::operation::Operation;
use crate::read::Budget;
use model::{Code, Error};
use query::pipeline::{Advance, Source};
use std::sync::Arc;

/// What a document of a reply may weigh: stages may build larger ones.
const DOCUMENT_BYTES_MAX: usize = 16 * 1024 * 1024 + 16 * 1024;

pub(crate) struct PipelineSource {
    pub(crate) source: Box<dyn Source>,
    pub(crate) environment: Arc<ShardEnvironment>,
    /// The current document did not fit into the last batch.
    pub(crate) left_over: bool,
}

impl BatchSource for PipelineSource {
    fn fill(
        &mut self,
        operation: &Arc<Operation>,
        batch: &mut Batch,
        budget: &mut Budget,
    ) -> Result<Filled, Error> {
        // A stage may collect its whole input before the first document, so
        // the runtime is told before anything else.
        if budget.steps != u64::MAX {
            return Ok(Filled::Paused);
        }
        self.environment.run_for(operation);
        loop {
            // Whether a full batch was the last one is not asked, as in MongoDB:
            // the next document may be expensive.
            if batch.is_full() {
                return Ok(Filled::Full);
            }
            if !self.left_over {
                match self.source.advance().map_err(while_running)? {
                    Advance::Document => {}
                    Advance::Paused | Advance::End => return Ok(Filled::Ended),
                }
            }
            let document = self.source.current();
            if document.len() > DOCUMENT_BYTES_MAX {
                return Err(Error::new(
                    Code::BSON_OBJECT_TOO_LARGE,
                    format!(
                        "BSONObj size: {} is invalid. Size must be between 0 and \
                         {DOCUMENT_BYTES_MAX}(16MB)",
                        document.len()
                    ),
                ));
            }
            self.left_over = !batch.offer(document);
            if self.left_over {
                return Ok(Filled::Full);
            }
        }
    }

    fn suspend(&mut self) {
        self.environment.suspend();
    }
}
