//! The threads of the cores, and the choice of a core for each connection.

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

use crate::{CURRENT, Core};

/// One runtime for each core. Cheap to clone. The default has none: tasks then run on the runtime that spawns them.
#[derive(Clone, Debug, Default)]
pub struct Cores {
    threads: Arc<[Thread]>,
    /// The thread at which the next search for a slot starts.
    next: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct Thread {
    runtime: Handle,
    /// The number of slots in use.
    slots: Arc<AtomicUsize>,
}

/// Owns the threads of [`Cores`]. Dropping it drops their tasks and waits for the end of the threads.
#[derive(Debug)]
#[must_use = "dropping it ends the threads"]
pub struct WorkerPool {
    stop: CancellationToken,
    threads: Vec<JoinHandle<()>>,
}

/// Reserves a core for one long task. The core counts the slot until it is dropped.
#[derive(Debug)]
pub struct CoreSlot {
    runtime: Option<Handle>,
    slots: Option<Arc<AtomicUsize>>,
}

impl Cores {
    /// Starts `count` threads.
    ///
    /// # Errors
    ///
    /// If the system refuses a thread or the resources of its runtime.
    pub fn start(count: usize) -> io::Result<(Self, WorkerPool)> {
        let stop = CancellationToken::new();
        let mut started = WorkerPool { stop: stop.clone(), threads: Vec::new() };
        let mut threads = Vec::new();
        for number in 0..count {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            threads.push(Thread { runtime: runtime.handle().clone(), slots: Arc::default() });
            let stop = stop.clone();
            let thread = thread::Builder::new().name(format!("core-{number}")).spawn(move || {
                CURRENT.set(Some(Core(number)));
                runtime.block_on(stop.cancelled());
            })?;
            started.threads.push(thread);
        }

        Ok((Self { threads: threads.into(), next: Arc::default() }, started))
    }

    /// Returns the same threads with counts of slots of their own: one kind of connections is then spread evenly, whatever
    /// other kinds run on the cores.
    pub fn with_own_counts(&self) -> Self {
        let fresh = |thread: &Thread| Thread { runtime: thread.runtime.clone(), slots: Arc::default() };
        Self { threads: self.threads.iter().map(fresh).collect(), next: Arc::default() }
    }

    /// Returns the number of cores.
    pub fn count(&self) -> usize {
        self.threads.len()
    }

    /// Reserves a slot on the core with the fewest slots in use, in turn among equals.
    ///
    /// Connections do not move between cores later. So only an even start keeps each connection as fast as the others.
    pub fn reserve(&self) -> CoreSlot {
        let start = self.next.fetch_add(1, Relaxed);
        let count = self.threads.len();
        let turns = (0..count).map(|step| &self.threads[start.wrapping_add(step) % count]);
        CoreSlot::on(turns.min_by_key(|thread| thread.slots.load(Relaxed)))
    }

    /// Reserves a slot on the core with this number, modulo the number of cores.
    pub fn reserve_at(&self, number: usize) -> CoreSlot {
        CoreSlot::on(self.threads.get(number % self.threads.len().max(1)))
    }
}

impl CoreSlot {
    fn on(thread: Option<&Thread>) -> Self {
        let slots = thread.map(|thread| {
            thread.slots.fetch_add(1, Relaxed);
            Arc::clone(&thread.slots)
        });
        Self { runtime: thread.map(|thread| thread.runtime.clone()), slots }
    }

    /// Spawns a task on the core, which holds the slot until its end. Tasks that it spawns run on the same core.
    pub fn spawn<F>(self, tasks: &TaskTracker, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let runtime = self.runtime.clone();
        let task = async move {
            let _slot = self;
            task.await;
        };
        match runtime {
            Some(runtime) => tasks.spawn_on(task, &runtime),
            None => tasks.spawn(task),
        };
    }
}

impl Drop for CoreSlot {
    fn drop(&mut self) {
        if let Some(slots) = &self.slots {
            slots.fetch_sub(1, Relaxed);
        }
    }
}

impl WorkerPool {
    /// Stops the threads without waiting for their end: a task that blocks its thread cannot delay the end of the process.
    pub fn detach(mut self) {
        self.stop.cancel();
        self.threads.clear();
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        self.stop.cancel();
        for thread in self.threads.drain(..) {
            // Fails if the thread panicked, which was logged.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::sync::{mpsc, oneshot};

    use super::*;
    use crate::current;

    fn counts(cores: &Cores) -> [usize; 2] {
        [0, 1].map(|core| cores.threads[core].slots.load(Relaxed))
    }

    #[tokio::test]
    async fn tasks_are_spread_evenly_and_stay_on_their_core() {
        let (cores, _threads) = Cores::start(2).unwrap();
        let tasks = TaskTracker::new();
        let (report, mut reports) = mpsc::unbounded_channel();
        let mut stops = [Vec::new(), Vec::new()];
        for number in 0..6 {
            let (stop, stopped) = oneshot::channel::<()>();
            stops[number % 2].push(stop);
            let report = report.clone();
            cores.reserve().spawn(&tasks, async move {
                let core = current();
                let spawned = tokio::spawn(async { current() }).await.unwrap();
                report.send((core, spawned)).unwrap();
                let _ = stopped.await;
            });
        }
        let mut seen = [0; 2];
        for _ in 0..6 {
            let (core, spawned) = reports.recv().await.unwrap();
            assert_eq!(core, spawned, "a spawned task stays on the core");
            seen[core.unwrap().0] += 1;
        }
        assert_eq!(seen, [3, 3]);

        // The tasks of one core end, and the next ones run there.
        stops[0].clear();
        while tasks.len() > 3 {
            tokio::task::yield_now().await;
        }
        assert_eq!(counts(&cores), [0, 3]);
        let _next: Vec<_> = (0..3).map(|_| cores.reserve()).collect();
        assert_eq!(counts(&cores), [3, 3]);
    }

    #[test]
    fn own_counts_are_even_by_themselves() {
        let (cores, _threads) = Cores::start(2).unwrap();
        let (tunnels, callers) = (cores.with_own_counts(), cores.with_own_counts());
        let _tunnel = tunnels.reserve();
        let _callers: Vec<_> = (0..3).map(|_| callers.reserve()).collect();
        let _other = tunnels.reserve();
        assert_eq!((counts(&tunnels), counts(&callers)), ([1, 1], [2, 1]));
    }

    #[tokio::test]
    async fn task_without_cores_runs_on_the_spawning_runtime() {
        let tasks = TaskTracker::new();
        let (send, sent) = oneshot::channel();
        Cores::default().reserve().spawn(&tasks, async move {
            send.send(current()).unwrap();
        });
        assert_eq!(sent.await.unwrap(), None);
    }

    #[test]
    fn detach_with_blocked_thread_returns() {
        let (cores, threads) = Cores::start(1).unwrap();
        let (release, blocked) = std::sync::mpsc::channel::<()>();
        let (started, has_started) = std::sync::mpsc::channel();
        cores.reserve_at(0).spawn(&TaskTracker::new(), async move {
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
        let value = Arc::new(());
        let clone = Arc::clone(&value);
        cores.reserve_at(7).spawn(&tasks, async move {
            let _clone = clone;
            pending::<()>().await;
        });
        drop(threads);
        assert_eq!(Arc::strong_count(&value), 1);
    }
}
