//! Several members in one process, with their threads, over a switchboard.

mod changing;
mod leading;
mod scripts;
mod switchboard;
