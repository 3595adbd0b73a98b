//! Variable-length unsigned integers for lengths and ids inside values.
//!
//! Seven bits per byte, low bits first, the high bit set on every byte but the
//! last. Decoding accepts the shortest form only, so that equal values have equal
//! bytes. Not order-preserving: keys use [`crate::layout`]'s own form.

/// Appends `value` in its shortest form.
pub fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Reads one integer from the front of `input` and advances it.
pub fn take(input: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for (at, &byte) in input.iter().enumerate().take(10) {
        let low = u64::from(byte & 0x7F);
        if at == 9 && low > 1 {
            return None;
        }
        value |= low << (7 * at);
        if byte & 0x80 == 0 {
            if byte == 0 && at > 0 {
                return None;
            }
            *input = &input[at + 1..];
            return Some(value);
        }
    }
    None
}

/// Reads a length and that many bytes from the front of `input`.
pub fn take_bytes<'a>(input: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(take(input)?).ok()?;
    let (head, rest) = input.split_at_checked(length)?;
    *input = rest;
    Some(head)
}

/// Appends a length and the bytes.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_refusals() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut out = Vec::new();
            put(&mut out, value);
            let mut input = &out[..];
            assert_eq!(take(&mut input), Some(value));
            assert!(input.is_empty());
        }
        for bad in [&[][..], &[0x80], &[0x80, 0x00], &[0xFF; 10], &[0xFF; 11]] {
            assert_eq!(take(&mut &bad[..]), None, "{bad:?}");
        }
        assert_eq!(take_bytes(&mut &[5u8, 1, 2][..]), None);
    }
}
