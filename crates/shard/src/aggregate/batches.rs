//! A pipeline as the source of a cursor's batches.
//!
//! As a part of a scan over several shards it also says where it stands: at the record that was read
//! last, with so many documents made from it (`$unwind` makes several). Whoever goes on from there
//! leaves out as many, if that record is still the first to come. Only pipelines whose stages look at
//! one document at a time are asked for their place; of others the router counts all or nothing.

use super::{ShardEnvironment, check_size, while_running};
use crate::cursor::{Batch, BatchSource, Filled};
use crate::operation::Operation;
use crate::read::{Budget, ScanPart};
use model::Error;
use model::bson::{DocBuf, DocWriter, ValueRef};
use query::pipeline::{Advance, Source};
use std::sync::Arc;

pub(crate) struct PipelineSource {
    source: Box<dyn Source>,
    environment: Arc<ShardEnvironment>,
    /// The current document did not fit into the last batch.
    left_over: bool,
    part: Option<Arc<ScanPart>>,
    /// Where it goes on, until that was looked at.
    resumes: bool,
    /// Documents returned of the record that was read as that many-th.
    outputs: u32,
    pulled: u64,
    ended: bool,
    /// What is not owned, and by which version; of the scan, which may end before the pipeline.
    told: DocBuf,
}

impl PipelineSource {
    pub(crate) fn new(
        source: Box<dyn Source>,
        environment: Arc<ShardEnvironment>,
        part: Option<Arc<ScanPart>>,
    ) -> Self {
        let mut told = DocWriter::new();
        if let Some(scan) = environment.main_scan() {
            scan.lock().append_part(&mut told, None, &[]);
        }
        Self {
            resumes: part.as_ref().is_some_and(|part| part.after.is_some()),
            source,
            environment,
            left_over: false,
            part,
            outputs: 0,
            pulled: 0,
            ended: false,
            told: told.finish(),
        }
    }

    /// Counts a document that was made.
    fn count_output(&mut self) {
        let pulled = self.environment.pulled();
        if pulled != self.pulled {
            self.pulled = pulled;
            self.outputs = 0;
        }
        self.outputs += 1;
    }

    /// Goes past what was returned from the first record already. True if a document is left over.
    fn resume(&mut self) -> Result<Advance, Error> {
        let place = self.part.as_ref().and_then(|part| part.after.clone());
        let Some(place) = place else {
            return self.source.advance();
        };
        for _ in 0..place.outputs {
            let advanced = self.source.advance()?;
            let same = self.environment.pulled() == 1
                && (self.environment.main_scan()).is_none_or(|scan| scan.lock().stands_at(&place));
            match advanced {
                Advance::Document if same => self.count_output(),
                other => return Ok(other),
            }
        }
        self.source.advance()
    }
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
                let advanced = match std::mem::take(&mut self.resumes) {
                    true => self.resume(),
                    false => self.source.advance(),
                };
                match advanced.map_err(while_running)? {
                    Advance::Document if self.part.is_some() => self.count_output(),
                    Advance::Document => {}
                    Advance::Paused | Advance::End => {
                        self.ended = true;
                        return Ok(Filled::Ended);
                    }
                }
            }
            let document = self.source.current();
            check_size(document.len())?;
            self.left_over = !batch.offer(document);
            if self.left_over {
                return Ok(Filled::Full);
            }
        }
    }

    fn suspend(&mut self) {
        self.environment.suspend();
    }

    fn append_state(&self, writer: &mut DocWriter) {
        if self.part.is_none() {
            return;
        }
        let scan = self.environment.main_scan().filter(|_| !self.ended);
        let told = self.told.as_doc().get_doc("scan");
        if scan.is_none() && told.is_none() {
            return;
        }
        writer.begin_document("scan");
        if let Some(scan) = scan {
            let outputs = self.outputs - u32::from(self.left_over && self.outputs > 0);
            let scan = scan.lock();
            let place = match self.pulled {
                // Nothing was taken since it began, here or elsewhere.
                0 => (self.part.as_ref()).and_then(|part| part.after.clone()),
                _ => Some(scan.place(true, outputs)),
            };
            scan.append_uuid(writer);
            if let Some(place) = place {
                let bytes = place.encode();
                let bytes = ValueRef::Binary {
                    subtype: 0,
                    bytes: &bytes,
                };
                writer.append("place", bytes);
            }
        }
        for field in told.iter().flat_map(|told| told.iter()) {
            writer.append_element(&field);
        }
        writer.end();
    }
}
