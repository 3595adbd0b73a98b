//! Running aggregation pipelines: what the stages of `query::pipeline` need
//! from the shard, and the stages that write.
//!
//! | file | part |
//! | --- | --- |
//! | `environment.rs` | scans, disk, statistics for a running pipeline |
//! | `batches.rs` | a pipeline as the source of a cursor's batches |
//! | `out.rs` | `$out`: a new collection, renamed over the old |
//! | `merge.rs` | `$merge`: documents joined with a collection |
//! | `merge_by_id.rs` | the same for a portion at once, where `_id` joins them |
//!
//! A pipeline runs synchronously, told to the runtime as blocking. Stages that
//! write are not part of it: the command takes documents out in portions and
//! writes each portion before it asks for the next.

mod batches;
mod environment;
mod merge;
mod merge_by_id;
mod out;

pub(crate) use batches::PipelineSource;
pub(crate) use environment::ShardEnvironment;
pub(crate) use merge::{check_unique, merge_into};
pub(crate) use out::write_out;

use model::bson::DocBuf;
use model::{Code, Error};
use query::pipeline::{Advance, Source};

/// Documents of one portion, at most.
const PORTION_DOCUMENTS: usize = 1000;
/// Bytes of one portion, about.
const PORTION_BYTES: usize = 4 * 1024 * 1024;

/// The next documents to write; none at the end.
fn portion(source: &mut dyn Source) -> Result<Vec<DocBuf>, Error> {
    tokio::task::block_in_place(|| {
        let mut documents = Vec::new();
        let mut bytes = 0;
        while documents.len() < PORTION_DOCUMENTS && bytes < PORTION_BYTES {
            if source.advance()? != Advance::Document {
                break;
            }
            let document = source.take();
            check_size(document.as_bytes().len())?;
            bytes += document.as_bytes().len();
            documents.push(document);
        }
        Ok(documents)
    })
}

/// What a document of a reply, or one to be written, may weigh: stages may build larger ones.
const DOCUMENT_BYTES_MAX: usize = 16 * 1024 * 1024 + 16 * 1024;

fn check_size(bytes: usize) -> Result<(), Error> {
    if bytes <= DOCUMENT_BYTES_MAX {
        return Ok(());
    }
    Err(Error::new(
        Code::BSON_OBJECT_TOO_LARGE,
        format!(
            "BSONObj size: {bytes} is invalid. Size must be between 0 and \
             {DOCUMENT_BYTES_MAX}(16MB)"
        ),
    ))
}

/// Errors while documents flow are told from errors of the pipeline itself.
pub(crate) fn while_running(error: Error) -> Error {
    Error {
        message: format!(
            "PlanExecutor error during aggregation :: caused by :: {}",
            error.message
        ),
        ..error
    }
}
