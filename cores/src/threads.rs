//! The threads, and what each of them is given to do.

use std::{
    future::Future,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
};

use tokio::runtime::{Builder, Handle};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{Core, HERE};

/// Runtimes that tasks are given to. Cheap to clone; the default has none, and tasks run where they are spawned.
#[derive(Clone, Debug, Default)]
pub struct Cores {
    threads: Arc<[Thread]>,
    next: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct Thread {
    runtime: Handle,
    /// Seats that are taken.
    taken: Arc<AtomicUsize>,
}

/// The threads, until this is dropped: then their tasks are dropped where they stand, and the threads end.
#[derive(Debug)]
#[must_use = "dropping it ends the threads"]
pub struct Threads {
    stop: CancellationToken,
    threads: Vec<JoinHandle<()>>,
}

/// A place for one long task on one core, until this is dropped.
#[derive(Debug)]
pub struct Seat {
    runtime: Option<Handle>,
    taken: Option<Arc<AtomicUsize>>,
}

impl Cores {
    /// Starts `count` threads.
    pub fn start(count: usize) -> io::Result<(Self, Threads)> {
        let stop = CancellationToken::new();
        let mut started = Threads { stop: stop.clone(), threads: Vec::new() };
        let mut threads = Vec::new();
        for number in 0..count {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let taken = Arc::default();
            threads.push(Thread { runtime: runtime.handle().clone(), taken });
            let stop = stop.clone();
            let thread = thread::Builder::new().name(format!("core-{number}")).spawn(move || {
                HERE.set(Some(Core(number)));
                runtime.block_on(stop.cancelled());
            })?;
            started.threads.push(thread);
        }

        Ok((Self { threads: threads.into(), next: Arc::default() }, started))
    }

    /// The same threads, whose seats are counted apart: what is spread here is spread evenly, whatever else has seats there.
    pub fn apart(&self) -> Self {
        let apart = |thread: &Thread| Thread { runtime: thread.runtime.clone(), taken: Arc::default() };
        Self { threads: self.threads.iter().map(apart).collect(), next: Arc::default() }
    }

    /// A seat on the core with the fewest taken; equals take turns. There is no moving later, so an even start is what keeps
    /// the slowest requests as fast as the others.
    pub fn seat(&self) -> Seat {
        let start = self.next.fetch_add(1, Relaxed);
        let count = self.threads.len();
        let turns = (0..count).map(|step| &self.threads[start.wrapping_add(step) % count]);
        Seat::on(turns.min_by_key(|thread| thread.taken.load(Relaxed)))
    }

    /// A seat on the core with this number, counted around.
    pub fn seat_at(&self, number: usize) -> Seat {
        Seat::on(self.threads.get(number % self.threads.len().max(1)))
    }
}

impl Seat {
    fn on(thread: Option<&Thread>) -> Self {
        let taken = thread.map(|thread| {
            thread.taken.fetch_add(1, Relaxed);
            Arc::clone(&thread.taken)
        });
        Self { runtime: thread.map(|thread| thread.runtime.clone()), taken }
    }

    /// Runs a task there, which keeps the seat until its end. What it spawns runs there as well.
    pub fn spawn<F>(self, tasks: &TaskTracker, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let runtime = self.runtime.clone();
        let seated = async move {
            let _seat = self;
            task.await;
        };
        match runtime {
            Some(runtime) => tasks.spawn_on(seated, &runtime),
            None => tasks.spawn(seated),
        };
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(taken) = &self.taken {
            taken.fetch_sub(1, Relaxed);
        }
    }
}

impl Threads {
    /// Ends the threads without waiting for them: a task that blocks its thread cannot delay the end of the process.
    pub fn detach(mut self) {
        self.stop.cancel();
        self.threads.clear();
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.stop.cancel();
        for thread in self.threads.drain(..) {
            // One that panicked has told why.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::sync::{mpsc, oneshot};

    use super::*;
    use crate::here;

    #[tokio::test]
    async fn connections_are_spread_evenly_and_stay_where_they_are() {
        let (cores, _threads) = Cores::start(2).unwrap();
        let tasks = TaskTracker::new();
        let (report, mut reports) = mpsc::unbounded_channel();
        let mut stays = [Vec::new(), Vec::new()];
        for number in 0..6 {
            let (stay, leave) = oneshot::channel::<()>();
            stays[number % 2].push(stay);
            let report = report.clone();
            cores.seat().spawn(&tasks, async move {
                let core = here();
                let spawned = tokio::spawn(async { here() }).await.unwrap();
                report.send((core, spawned)).unwrap();
                let _ = leave.await;
            });
        }
        let mut seen = [0; 2];
        for _ in 0..6 {
            let (core, spawned) = reports.recv().await.unwrap();
            assert_eq!(core, spawned, "what a task spawns stays on its core");
            seen[core.unwrap().0] += 1;
        }
        assert_eq!(seen, [3, 3]);

        // Those of one core leave, and what comes next goes there.
        stays[0].clear();
        while tasks.len() > 3 {
            tokio::task::yield_now().await;
        }
        let taken = || [0, 1].map(|core| cores.threads[core].taken.load(Relaxed));
        assert_eq!(taken(), [0, 3]);
        let _next: Vec<_> = (0..3).map(|_| cores.seat()).collect();
        assert_eq!(taken(), [3, 3]);
    }

    #[test]
    fn seats_that_are_counted_apart_are_even_by_themselves() {
        let (cores, _threads) = Cores::start(2).unwrap();
        let (tunnels, callers) = (cores.apart(), cores.apart());
        let taken = |cores: &Cores| [0, 1].map(|core| cores.threads[core].taken.load(Relaxed));
        let _tunnel = tunnels.seat();
        let _callers: Vec<_> = (0..3).map(|_| callers.seat()).collect();
        let _other = tunnels.seat();
        assert_eq!((taken(&tunnels), taken(&callers)), ([1, 1], [2, 1]));
    }

    #[tokio::test]
    async fn without_cores_a_task_runs_where_it_is_spawned() {
        let tasks = TaskTracker::new();
        let (send, sent) = oneshot::channel();
        Cores::default().seat().spawn(&tasks, async move {
            send.send(here()).unwrap();
        });
        assert_eq!(sent.await.unwrap(), None);
    }

    #[test]
    fn detach_with_blocked_thread_returns() {
        let (cores, threads) = Cores::start(1).unwrap();
        let (release, blocked) = std::sync::mpsc::channel::<()>();
        let (started, has_started) = std::sync::mpsc::channel();
        cores.seat_at(0).spawn(&TaskTracker::new(), async move {
            started.send(()).unwrap();
            let _ = blocked.recv();
        });
        has_started.recv().unwrap();
        threads.detach();
        drop(release);
    }

    #[test]
    fn tasks_end_with_the_threads() {
        let (cores, threads) = Cores::start(1).unwrap();
        let tasks = TaskTracker::new();
        let kept = Arc::new(());
        let held = Arc::clone(&kept);
        cores.seat_at(7).spawn(&tasks, async move {
            let _held = held;
            pending::<()>().await;
        });
        drop(threads);
        assert_eq!(Arc::strong_count(&kept), 1);
    }
}
