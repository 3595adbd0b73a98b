//! Any bytes as a wire message: an error or a request, never a panic, and what
//! is accepted can be walked.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(request) = wire::parse_request(bytes::Bytes::copy_from_slice(bytes)) {
        let _ = (request.name(), request.database());
        for sequence in request.sequences() {
            assert_eq!(sequence.iter().count(), sequence.len());
        }
    }
});
