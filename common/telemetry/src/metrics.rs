//! The macro that declares a struct of metrics.

/// Declares a struct of metrics, and its function `register`, which creates and registers them.
///
/// After `=` a field has the method of [`RegistryExt`](crate::RegistryExt) that creates it, with the name, the help text, which is its
/// documentation as well, and the other arguments of the method. `with(function, …)` calls a function with the registry and these
/// arguments. A field without a method has its default. Parameters after the name of the struct are those of `register`, after the
/// registry. `register` is as visible as the struct. The crate that uses the macro needs `prometheus-client` as a dependency.
///
/// ```
/// use prometheus_client::metrics::{counter::Counter, gauge::Gauge};
///
/// telemetry::metrics! {
///     /// The metrics of the queue.
///     pub struct QueueMetrics {
///         pub length: Gauge = create("kas_queue_length", "Requests that wait"),
///         results: [Counter; 2] = variants("kas_queue", "Requests, by result", "result", &["ok", "failed"]),
///     }
/// }
/// # let metrics = QueueMetrics::register(&mut prometheus_client::registry::Registry::default());
/// # metrics.length.inc();
/// # metrics.results[0].inc();
/// ```
#[macro_export]
macro_rules! metrics {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $metrics:ident $(($($parameter:ident: $type:ty),+))? {
            $(
                $(#[$field_attribute:meta])*
                $field_visibility:vis $field:ident: $metric:ty
                $(= $method:ident($($name:literal, $help:literal)? $($function:path)? $(, $argument:expr)* $(,)?))?
            ),+ $(,)?
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Debug)]
        $visibility struct $metrics {
            $(
                $($(#[doc = $help])?)?
                $(#[$field_attribute])*
                $field_visibility $field: $metric,
            )+
        }

        impl $metrics {
            /// Registers the metrics.
            $visibility fn register(
                registry: &mut ::prometheus_client::registry::Registry
                $($(, $parameter: $type)+)?
            ) -> Self {
                Self {
                    $($field: $crate::metrics!(
                        @create registry $($method($($name, $help)? $($function)? $(, $argument)*))?
                    ),)+
                }
            }
        }
    };
    (@create $registry:ident) => {
        ::std::default::Default::default()
    };
    (@create $registry:ident with($function:path $(, $argument:expr)*)) => {
        $function($registry $(, $argument)*)
    };
    (@create $registry:ident $method:ident($($argument:expr),+)) => {
        $crate::RegistryExt::$method($registry, $($argument),+)
    };
}
