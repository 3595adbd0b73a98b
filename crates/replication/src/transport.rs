//! The port to the other members.

use crate::member::MemberId;

/// Carries packets to other members. Packets may be lost, doubled or arrive out of order;
/// what arrives is given to [`crate::Group::receive`] on the other side. It must arrive as
/// it was sent: the bytes carry no checksum of their own.
pub trait Transport: Send + Sync + 'static {
    /// Hands a packet over. Called on the log's thread, so it must not block: a packet for
    /// which there is no room is thrown away.
    fn send(&self, to: MemberId, packet: Vec<u8>);
}

/// For a group that will never have a second member.
pub struct NoTransport;

impl Transport for NoTransport {
    fn send(&self, to: MemberId, _packet: Vec<u8>) {
        tracing::debug!(%to, "a packet for another member, and no way to it");
    }
}
