//! Serves this machine's devices to apps of Burn 0.22, over Burn's remote protocol on WebSocket.
//!
//! ```text
//! cargo run --release --package burn-rocm-022 --example remote-server -- 0.0.0.0:3000
//! ```
//!
//! The app is any program of Burn 0.22.1 with the feature `remote-websocket`. It needs no patch in its manifest, and
//! reaches the devices as `Device::remote_options(&RemoteHost::websocket("ws://host:3000"))`. WebSocket is not
//! encrypted: without an address the program listens on the loopback alone, and where `BURN_REMOTE_TOKEN` is set, only
//! clients with that credential are served.

use std::env::VarError;
use std::error::Error;
use std::net::TcpListener;
use std::process::ExitCode;

use burn_ir::{CustomOpIr, ScalarIr};
use burn_remote::server::{BackendServer, CustomOpRegistry, TokenAuthorizer, WebSocketTransport};
use burn_rocm_022::{Rocm, RocmDevice, fft, provider};

/// The variable of the token.
const TOKEN: &str = "BURN_REMOTE_TOKEN";

fn main() -> ExitCode {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".into());
    match run(&address) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{address}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(address: &str) -> Result<(), Box<dyn Error>> {
    let token = token(std::env::var(TOKEN))?;
    let listener = TcpListener::bind(address)?;
    let provider = provider()?;
    println!(
        "serving {} device(s) of the provider {} on ws://{}",
        provider.device_count(),
        provider.kind(),
        listener.local_addr()?
    );
    serve(listener, token.as_deref())
}

/// The token of the environment. `None`: the server asks for none.
///
/// # Errors
/// If the variable's value is not UTF-8.
pub(crate) fn token(variable: Result<String, VarError>) -> Result<Option<String>, String> {
    match variable {
        Ok(token) => Ok(Some(token)),
        Err(VarError::NotPresent) => Ok(None),
        // Without an error, the server would serve everybody. The error doesn't show the token.
        Err(VarError::NotUnicode(_)) => {
            Err(format!("{TOKEN}: expected a token, found a text that is not UTF-8"))
        }
    }
}

/// Serves every device of the chosen provider until Ctrl+C or `SIGTERM`; with a token only to clients that present it.
///
/// # Errors
/// If no provider has a device, the token is empty, or the socket fails.
pub(crate) fn serve(listener: TcpListener, token: Option<&str>) -> Result<(), Box<dyn Error>> {
    let devices = (0..provider()?.device_count()).map(|index| RocmDevice::new(index).into());
    let mut server = BackendServer::<Rocm>::new(devices).with_custom_ops(transforms());
    if let Some(token) = token {
        server = server.with_authorizer(TokenAuthorizer::new(token)?);
    }
    Ok(server.serve(WebSocketTransport::from_listener(listener))?)
}

/// The Fourier transforms that clients' burn-signal 0.22.1 asks for. No trait of Burn's has them.
fn transforms() -> CustomOpRegistry<Rocm> {
    let mut registry = CustomOpRegistry::new();
    registry.register("signal::rfft", |handles, op, _device| {
        let (dim, n) = along(op);
        let ([signal], [re, im]) = op.as_fixed();
        let parts = fft::rfft(handles.get_float_tensor::<Rocm>(signal), dim, n);
        handles.register_float_tensor::<Rocm>(&re.id, parts.0);
        handles.register_float_tensor::<Rocm>(&im.id, parts.1);
    });
    registry.register("signal::irfft", |handles, op, _device| {
        let (dim, n) = along(op);
        let ([re, im], [signal]) = op.as_fixed();
        let [re, im] = [re, im].map(|part| handles.get_float_tensor::<Rocm>(part));
        handles.register_float_tensor::<Rocm>(&signal.id, fft::irfft(re, im, dim, n));
    });
    registry
}

/// The dim of a transform, and how many samples it has where that was given.
///
/// # Panics
/// If a client sends something else than burn-signal 0.22.1 does. Its session reports the panic.
fn along(op: &CustomOpIr) -> (usize, Option<usize>) {
    match op.scalars.as_slice() {
        [ScalarIr::UInt(dim), ScalarIr::Bool(given), ScalarIr::UInt(n)] => {
            (*dim as usize, given.then_some(*n as usize))
        }
        other => panic!("{}: expected a dim and a number of samples, found {other:?}", op.id),
    }
}
