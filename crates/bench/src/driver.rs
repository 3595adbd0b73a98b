//! One measurement: many connections, one server, one stretch of time.
//!
//! ```text
//!  connect, prepare ─► warm up ─► measure ─────────────────────────► done
//!                              CPU read                    CPU read
//! ```
//!
//! Each connection has a thread that performs one operation after the other (a closed loop). An
//! operation counts when it *completes* while measuring: the ones in flight at both ends balance out.
//! The stretch is prolonged until every connection can have completed a few operations, because a
//! window shorter than an operation measures nothing. A load has no warm-up and lasts until all records
//! are given out.
//!
//! The first wrong reply ends the measurement with an error.

use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use fastrand::Rng;
use hdrhistogram::Histogram;

use crate::connection::Connection;
use crate::operations::{Done, Operation, Setting, prepare};
use crate::process::CpuReading;
use crate::servers::Server;
use crate::statistics::{Measurement, empty_latencies, record_latency};
use crate::workload::Workload;

/// How long to measure.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    pub warm_up: Duration,
    pub measure: Duration,
}

/// Operations that each connection should complete on average before a measurement may end …
const OPERATIONS_PER_CONNECTION_MIN: u64 = 4;
/// … unless it has already taken this many times its planned length.
const PROLONGED_AT_MOST: u32 = 15;

const WARMING_UP: u8 = 0;
const MEASURING: u8 = 1;
const DONE: u8 = 2;

/// What the threads of one measurement share.
struct Course {
    phase: AtomicU8,
    completed: AtomicU64,
    start: Barrier,
    /// Threads end only after the client's CPU was read: an ended thread's time is gone.
    end: Barrier,
}

/// What one thread counted while measuring.
struct Tally {
    units: u64,
    latencies: Histogram<u64>,
}

/// One connection with the operations of its workload.
struct Worker {
    connection: Connection,
    operations: Vec<(u8, Box<dyn Operation>)>,
    random: Rng,
    tally: Tally,
}

impl Worker {
    fn new(
        server: &Server,
        setting: &Arc<Setting>,
        workload: Workload,
        seed: u64,
    ) -> Result<Worker> {
        let mut random = Rng::with_seed(seed);
        let mut operations = Vec::new();
        for &(action, share) in workload.mix() {
            operations.push((share, prepare(action, setting, &mut random)?));
        }
        Ok(Worker {
            connection: server.connect()?,
            operations,
            random,
            tally: Tally {
                units: 0,
                latencies: empty_latencies(),
            },
        })
    }

    fn run(&mut self, course: &Course) -> Result<()> {
        let mut before = Instant::now();
        loop {
            let operation = choose(&mut self.operations, &mut self.random);
            let done = operation.perform(&mut self.connection, &mut self.random)?;
            let now = Instant::now();
            let Done::Units(units) = done else {
                break;
            };
            match course.phase.load(Ordering::Relaxed) {
                WARMING_UP => {}
                MEASURING => {
                    self.tally.units += units;
                    record_latency(&mut self.tally.latencies, now - before);
                    course.completed.fetch_add(1, Ordering::Relaxed);
                }
                _ => break,
            }
            before = now;
        }
        for (_, operation) in &mut self.operations {
            operation.finish(&mut self.connection)?;
        }
        Ok(())
    }
}

/// Draws an operation by its share of the mix.
fn choose<'a>(
    operations: &'a mut [(u8, Box<dyn Operation>)],
    random: &mut Rng,
) -> &'a mut dyn Operation {
    let mut position = 0;
    if operations.len() > 1 {
        let mut draw = random.u8(..100);
        while position + 1 < operations.len() && draw >= operations[position].0 {
            draw -= operations[position].0;
            position += 1;
        }
    }
    operations[position].1.as_mut()
}

/// Runs a workload against a server and says what it gave.
pub fn measure(
    server: &Server,
    setting: &Arc<Setting>,
    workload: Workload,
    connections: usize,
    pace: Pace,
    seed: u64,
) -> Result<Measurement> {
    let course = Arc::new(Course {
        phase: AtomicU8::new(WARMING_UP),
        completed: AtomicU64::new(0),
        start: Barrier::new(connections + 1),
        end: Barrier::new(connections + 1),
    });
    let (report, stopped) = mpsc::channel();
    let mut workers = Vec::with_capacity(connections);
    for number in 0..connections as u64 {
        workers.push(Worker::new(
            server,
            setting,
            workload,
            seed * 1_000 + number,
        )?);
    }
    let threads: Vec<_> = workers
        .into_iter()
        .map(|worker| {
            let (course, report) = (Arc::clone(&course), report.clone());
            thread::spawn(move || run_thread(worker, &course, &report))
        })
        .collect();
    drop(report);

    let observed = observe(server, workload, connections, pace, &course, &stopped);
    course.phase.store(DONE, Ordering::Relaxed);
    course.end.wait();
    let mut units = 0;
    let mut latencies = empty_latencies();
    for thread in threads {
        let Ok(tally) = thread.join() else {
            bail!("a load thread panicked");
        };
        units += tally.units;
        latencies.add(tally.latencies)?;
    }
    let observed =
        observed.with_context(|| format!("{workload:?} against {}", server.product.name()))?;
    if units == 0 {
        bail!(
            "no operation of {workload:?} completed against {}",
            server.product.name()
        );
    }
    Ok(Measurement {
        elapsed: observed.elapsed,
        units,
        latencies,
        server_cpu: observed.server_cpu,
        client_cpu: observed.client_cpu,
    })
}

fn run_thread(mut worker: Worker, course: &Course, report: &Sender<Result<()>>) -> Tally {
    course.start.wait();
    // A panic must reach the barrier too, or everybody would wait there for this thread.
    let result = panic::catch_unwind(AssertUnwindSafe(|| worker.run(course)))
        .unwrap_or_else(|_| Err(anyhow!("a load thread panicked")));
    // The receiver may have given up after another thread's error.
    let _ = report.send(result);
    course.end.wait();
    worker.tally
}

struct Observed {
    elapsed: Duration,
    server_cpu: Duration,
    client_cpu: Duration,
}

/// Leads the threads through the phases and reads clocks at both ends.
fn observe(
    server: &Server,
    workload: Workload,
    connections: usize,
    pace: Pace,
    course: &Course,
    stopped: &Receiver<Result<()>>,
) -> Result<Observed> {
    let until_exhausted = workload == Workload::Load;
    let client = std::process::id();
    let read = || {
        let members = server.pids().map(CpuReading::of);
        let members: Vec<CpuReading> = members.collect::<Result<_>>()?;
        Ok::<_, anyhow::Error>((members, CpuReading::of(client)?))
    };
    if !until_exhausted {
        course.start.wait();
        wait(stopped, 0, Instant::now() + pace.warm_up)?;
    }
    let before = read();
    let begin = Instant::now();
    course.phase.store(MEASURING, Ordering::Relaxed);
    if until_exhausted {
        // Before any error is looked at: threads that never start would never end either.
        course.start.wait();
    }
    let (server_before, client_before) = before?;
    if until_exhausted {
        wait(stopped, connections, begin + Duration::from_secs(3_600))?;
    } else {
        wait(stopped, 0, begin + pace.measure)?;
        let enough = OPERATIONS_PER_CONNECTION_MIN * connections as u64;
        let deadline = begin + pace.measure * PROLONGED_AT_MOST;
        while course.completed.load(Ordering::Relaxed) < enough && Instant::now() < deadline {
            wait(stopped, 0, Instant::now() + pace.measure / 10)?;
        }
    }
    let elapsed = begin.elapsed();
    let (server_after, client_after) = read()?;
    Ok(Observed {
        elapsed,
        server_cpu: server_after
            .iter()
            .zip(&server_before)
            .map(|(after, before)| after.since(before))
            .sum(),
        client_cpu: client_after.since(&client_before),
    })
}

/// Waits until a moment, or until this many threads have stopped. The first error ends the wait.
fn wait(stopped: &Receiver<Result<()>>, threads: usize, until: Instant) -> Result<()> {
    let mut count = 0;
    while threads == 0 || count < threads {
        match stopped.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(result) => {
                result?;
                count += 1;
            }
            Err(RecvTimeoutError::Timeout) => break,
            Err(RecvTimeoutError::Disconnected) => bail!("a load thread ended without a word"),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Numbered(u64);

    impl Operation for Numbered {
        fn perform(&mut self, _connection: &mut Connection, _random: &mut Rng) -> Result<Done> {
            Ok(Done::Units(self.0))
        }
    }

    #[test]
    fn operations_are_drawn_by_share() {
        let mut operations: Vec<(u8, Box<dyn Operation>)> =
            vec![(95, Box::new(Numbered(0))), (5, Box::new(Numbered(1)))];
        let addresses: Vec<*const ()> = operations
            .iter()
            .map(|(_, operation)| std::ptr::from_ref(operation.as_ref()).cast())
            .collect();
        let mut random = Rng::with_seed(5);
        let mut rare = 0;
        for _ in 0..10_000 {
            let drawn: *const () = std::ptr::from_ref(choose(&mut operations, &mut random)).cast();
            assert!(addresses.contains(&drawn));
            rare += u32::from(drawn == addresses[1]);
        }
        assert!((400..600).contains(&rare), "{rare} of 10,000");
    }

    #[test]
    fn waiting_ends_with_time_threads_or_an_error() {
        let (report, stopped) = mpsc::channel();
        let soon = || Instant::now() + Duration::from_millis(1);
        let far = || Instant::now() + Duration::from_secs(60);
        assert!(wait(&stopped, 0, soon()).is_ok());
        report.send(Ok(())).expect("sent");
        report.send(Ok(())).expect("sent");
        assert!(wait(&stopped, 2, far()).is_ok());
        report.send(Err(anyhow::anyhow!("wrong"))).expect("sent");
        assert!(wait(&stopped, 1, far()).is_err());
        drop(report);
        assert!(wait(&stopped, 0, far()).is_err());
    }
}
