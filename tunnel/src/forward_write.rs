//! Forwards the writes of a wrapper to the stream that it wraps.

/// Implements the methods of [`AsyncWrite`](tokio::io::AsyncWrite) except `poll_shutdown` by those of the field `$io`.
///
/// The wrapper and the type of the field must be `Unpin`.
#[macro_export]
macro_rules! forward_write {
    ($io:ident) => {
        fn poll_write(
            mut self: ::std::pin::Pin<&mut Self>,
            cx: &mut ::std::task::Context<'_>,
            data: &[u8],
        ) -> ::std::task::Poll<::std::io::Result<usize>> {
            ::std::pin::Pin::new(&mut self.$io).poll_write(cx, data)
        }

        fn poll_write_vectored(
            mut self: ::std::pin::Pin<&mut Self>,
            cx: &mut ::std::task::Context<'_>,
            slices: &[::std::io::IoSlice<'_>],
        ) -> ::std::task::Poll<::std::io::Result<usize>> {
            ::std::pin::Pin::new(&mut self.$io).poll_write_vectored(cx, slices)
        }

        fn is_write_vectored(&self) -> bool {
            self.$io.is_write_vectored()
        }

        fn poll_flush(
            mut self: ::std::pin::Pin<&mut Self>,
            cx: &mut ::std::task::Context<'_>,
        ) -> ::std::task::Poll<::std::io::Result<()>> {
            ::std::pin::Pin::new(&mut self.$io).poll_flush(cx)
        }
    };
}
