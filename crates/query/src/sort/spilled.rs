//! Runs outside of memory, in whatever can be written and read back.
//!
//! ```text
//!   run   ( key length u32 | payload length u32 | key | payload )*    little endian
//! ```
//!
//! Where a run lies is its opener's affair, which also sees to it that nothing is left behind.

use super::{Run, RunWriter, Spill, SpilledRecord};
use model::{Code, Error};
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};

/// What one record's key or payload may take on disk. Large groups come in pieces, see
/// `pipeline/group`.
const PART_BYTES_MAX: u32 = 64 << 20;

/// Opens an empty place for each run.
pub struct StreamSpill<O> {
    open: O,
}

impl<O> StreamSpill<O> {
    pub fn new(open: O) -> Self {
        Self { open }
    }
}

fn failed(error: io::Error) -> Error {
    let code = match error.kind() {
        ErrorKind::StorageFull => Code::OUT_OF_DISK_SPACE,
        _ => Code::INTERNAL_ERROR,
    };
    Error::new(code, format!("a sort could not use the disk: {error}"))
}

impl<O, S> Spill for StreamSpill<O>
where
    O: FnMut() -> io::Result<S> + Send,
    S: Read + Write + Seek + Send + 'static,
{
    fn begin_run(&mut self) -> Result<Box<dyn RunWriter>, Error> {
        let stream = (self.open)().map_err(failed)?;
        let out = BufWriter::with_capacity(1 << 16, stream);
        Ok(Box::new(StreamWriter(out)))
    }
}

struct StreamWriter<S: Write>(BufWriter<S>);

impl<S> RunWriter for StreamWriter<S>
where
    S: Read + Write + Seek + Send + 'static,
{
    fn append(&mut self, key: &[u8], payload: &[u8]) -> Result<(), Error> {
        let Self(out) = self;
        for length in [key.len(), payload.len()] {
            let length = u32::try_from(length)
                .ok()
                .filter(|length| *length <= PART_BYTES_MAX)
                .ok_or_else(too_large)?;
            out.write_all(&length.to_le_bytes()).map_err(failed)?;
        }
        out.write_all(key).map_err(failed)?;
        out.write_all(payload).map_err(failed)
    }

    fn finish(self: Box<Self>) -> Result<Box<dyn Run>, Error> {
        let mut stream = (self.0)
            .into_inner()
            .map_err(|error| failed(error.into_error()))?;
        stream.seek(SeekFrom::Start(0)).map_err(failed)?;
        Ok(Box::new(StreamRun(BufReader::with_capacity(
            1 << 16,
            stream,
        ))))
    }
}

fn too_large() -> Error {
    Error::new(
        Code::EXCEEDED_MEMORY_LIMIT,
        format!("one document takes more than {PART_BYTES_MAX} bytes"),
    )
}

struct StreamRun<S>(BufReader<S>);

impl<S: Read + Send> Run for StreamRun<S> {
    fn next(&mut self) -> Result<Option<SpilledRecord>, Error> {
        let mut lengths = [0; 8];
        match self.0.read_exact(&mut lengths) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(failed(error)),
        }
        let [a, b, c, d, e, f, g, h] = lengths;
        let key = self.part(u32::from_le_bytes([a, b, c, d]))?;
        let payload = self.part(u32::from_le_bytes([e, f, g, h]))?;
        Ok(Some(SpilledRecord { key, payload }))
    }
}

impl<S: Read> StreamRun<S> {
    fn part(&mut self, length: u32) -> Result<Vec<u8>, Error> {
        if length > PART_BYTES_MAX {
            return Err(Error::new(
                Code::INTERNAL_ERROR,
                "a sorted run on disk is damaged",
            ));
        }
        let mut bytes = vec![0; length as usize];
        self.0.read_exact(&mut bytes).map_err(failed)?;
        Ok(bytes)
    }
}
