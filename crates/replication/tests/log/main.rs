//! Tests of the log from outside, most of them on a simulated disk.

mod committing;
mod crash;
mod damage;
mod reading;
mod trimming;
mod turns;
mod world;
