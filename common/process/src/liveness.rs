//! Detects threads that no longer run their tasks: deadlocks, endless loops and blocking calls.
//!
//! A [`Heartbeat`] is a task, or a part of one, that beats once a second. A [`LivenessThread`] counts the age of each heartbeat in
//! its own ticks, which are a second or longer: a process that the system freezes or throttles has no ticks either, and is not
//! blamed afterwards. From 15 ticks on the process is not alive, and at 45 it ends itself.

mod history;
mod thread;

use std::{
    convert::Infallible,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::Mutex;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{MetricType, gauge::ConstGauge},
    registry::{Registry, Unit},
};
use tokio::time::{Instant, sleep_until};

use self::history::{HeartbeatHistory, TaskState};
pub use self::thread::{LivenessThread, exit};

/// The time between two beats, and between two ticks of the thread.
const PERIOD: Duration = Duration::from_secs(1);

/// The heartbeats of a process. Clones share them.
#[derive(Clone, Debug)]
pub struct Liveness(Arc<LivenessState>);

#[derive(Debug)]
struct LivenessState {
    period: Duration,
    tasks: Mutex<Vec<MonitoredTask>>,
}

#[derive(Debug)]
struct MonitoredTask {
    name: String,
    beat: Arc<LastBeat>,
    history: HeartbeatHistory,
}

/// The beats since the last tick: 0 if there was none, else a microsecond more than the latest of them was late.
#[derive(Debug, Default)]
struct LastBeat(AtomicU64);

/// Registers a task that has to beat until this value is dropped.
#[derive(Debug)]
#[must_use = "it beats only while it runs"]
pub struct Heartbeat {
    liveness: Liveness,
    beat: Arc<LastBeat>,
}

impl Default for Liveness {
    fn default() -> Self {
        Self::with_period(PERIOD)
    }
}

impl Liveness {
    /// Creates heartbeats with another period than a second, for tests.
    pub fn with_period(period: Duration) -> Self {
        Self(Arc::new(LivenessState { period, tasks: Mutex::default() }))
    }

    /// Registers the gauge `<prefix>_core_lag_seconds`.
    pub fn register(&self, registry: &mut Registry, prefix: &str) {
        let collector = LagCollector { name: format!("{prefix}_core_lag"), liveness: self.clone() };
        registry.register_collector(Box::new(collector));
    }

    /// Registers a task, which has to beat from now on.
    pub fn heartbeat(&self, name: impl Into<String>) -> Heartbeat {
        let beat = Arc::<LastBeat>::default();
        let task = MonitoredTask {
            name: name.into(),
            beat: Arc::clone(&beat),
            history: HeartbeatHistory::new(self.0.period),
        };
        self.0.tasks.lock().push(task);
        Heartbeat { liveness: self.clone(), beat }
    }

    /// Returns a line for each task that has not beaten for 15 ticks. The process is alive if there is none.
    pub fn problems(&self) -> Vec<String> {
        let tasks = self.0.tasks.lock();
        let stalled = tasks.iter().filter(|task| task.history.state() != TaskState::Alive);
        stalled.map(|task| format!("{}: no heartbeat for {:?}", task.name, task.history.age())).collect()
    }

    /// Counts a tick of the thread. Returns the worst state of all tasks.
    fn tick(&self) -> TaskState {
        let mut worst = TaskState::Alive;
        for task in &mut *self.0.tasks.lock() {
            let before = task.history.state();
            task.history.tick(task.beat.take());
            let state = task.history.state();
            if before == TaskState::Alive && state == TaskState::Stalled {
                let (name, age) = (&*task.name, task.history.age());
                tracing::error!(task = name, ?age, "no heartbeat: /liveness is 503 until the next one");
            }
            worst = worst.max(state);
        }
        worst
    }
}

impl LastBeat {
    fn set(&self, late: Duration) {
        let micros = u64::try_from(late.as_micros()).unwrap_or(u64::MAX);
        self.0.fetch_max(micros.saturating_add(1), Relaxed);
    }

    /// Returns by how much the latest beat since the last call was late, or `None` if there was no beat.
    fn take(&self) -> Option<Duration> {
        self.0.swap(0, Relaxed).checked_sub(1).map(Duration::from_micros)
    }
}

impl Heartbeat {
    /// Beats until it is dropped.
    pub async fn run(self) -> Infallible {
        let period = self.liveness.0.period;
        let mut due = Instant::now();
        loop {
            sleep_until(due).await;
            let now = Instant::now();
            self.beat.set(now - due);
            due = now + period;
        }
    }

    /// Beats in the task that polls `future`, until it completes.
    pub async fn during<F: Future>(self, future: F) -> F::Output {
        tokio::select! {
            // First, because a busy future may use up the task's budget for this poll, without which no timer fires.
            biased;
            never = self.run() => match never {},
            output = future => output,
        }
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.liveness.0.tasks.lock().retain(|task| !Arc::ptr_eq(&task.beat, &self.beat));
    }
}

#[derive(Debug)]
struct LagCollector {
    name: String,
    liveness: Liveness,
}

impl Collector for LagCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "The most by which a heartbeat of the task was late in the last minute";
        let unit = Some(&Unit::Seconds);
        let mut family = encoder.encode_descriptor(&self.name, help, unit, MetricType::Gauge)?;
        for task in &*self.liveness.0.tasks.lock() {
            let lag = ConstGauge::new(task.history.lag().as_secs_f64());
            lag.encode(family.encode_family(&[("task", &*task.name)])?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use prometheus_client::encoding::text::encode;
    use tokio::{
        task::{coop::consume_budget, yield_now},
        time::{advance, sleep},
    };

    use super::*;

    async fn ticks(liveness: &Liveness, count: usize) -> TaskState {
        let mut state = TaskState::Alive;
        for _ in 0..count {
            sleep(PERIOD).await;
            state = liveness.tick();
        }
        state
    }

    #[tokio::test(start_paused = true)]
    async fn task_that_beats_is_alive_and_task_that_does_not_is_named() {
        let liveness = Liveness::default();
        let _running = tokio::spawn(liveness.heartbeat("core-0").run());
        let blocked = liveness.heartbeat("core-1");
        assert_eq!(ticks(&liveness, 14).await, TaskState::Alive);
        assert!(liveness.problems().is_empty());
        assert_eq!(ticks(&liveness, 1).await, TaskState::Stalled);
        assert_eq!(liveness.problems(), ["core-1: no heartbeat for 15s"]);
        let blocked = tokio::spawn(blocked.run());
        assert_eq!(ticks(&liveness, 2).await, TaskState::Alive);

        blocked.abort();
        assert_eq!(ticks(&liveness, 100).await, TaskState::Alive, "a task that ended need not beat");
    }

    #[tokio::test(start_paused = true)]
    async fn task_whose_future_uses_up_its_budget_beats() {
        let liveness = Liveness::default();
        let busy = async {
            loop {
                consume_budget().await;
            }
        };
        let _busy = tokio::spawn(liveness.heartbeat("accept-agent").during(busy));
        for second in 0..60 {
            advance(PERIOD).await;
            yield_now().await;
            liveness.tick();
            assert!(liveness.0.tasks.lock()[0].history.age() <= PERIOD, "{second}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn output_of_future_ends_the_heartbeat() {
        let liveness = Liveness::default();
        assert_eq!(liveness.heartbeat("a").during(async { 7 }).await, 7);
        assert!(liveness.0.tasks.lock().is_empty());
        drop(liveness.heartbeat("b").during(pending::<()>()));
        assert!(liveness.0.tasks.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn late_beat_is_the_lag() {
        let (liveness, mut registry) = (Liveness::default(), Registry::default());
        liveness.register(&mut registry, "kas");
        let late = liveness.heartbeat("core-0");
        late.beat.set(Duration::from_millis(250));
        late.beat.set(Duration::ZERO);
        liveness.tick();
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        assert!(text.contains("kas_core_lag_seconds{task=\"core-0\"} 0.25\n"), "{text}");
    }
}
