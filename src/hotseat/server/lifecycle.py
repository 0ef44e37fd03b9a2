"""Run the application: bind, start the engine, say where it is, and go down in good order."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial

import uvicorn

from hotseat.errors import ConfigError
from hotseat.server.app import create_app
from hotseat.server.config import ServerConfig
from hotseat.server.connections import ConnectionTable
from hotseat.server.lag import LagMonitor
from hotseat.server.port_holder import port_holder
from hotseat.server.protocol import HttpProtocol
from hotseat.server.services import ServerServices
from hotseat.server.state import InFlightRequests, ServerContext, shutting_down
from hotseat.server.version import hotseat_version

__all__ = ["listening_socket", "run_app"]

logger = logging.getLogger(__name__)

KEEP_ALIVE_S = 60
TICK_S = 1.0
GRACE_PERIOD_S = 1.0  # what clients get to read the end of their streams once everything was aborted
MANY_FILES = 65_536
FILES_FOR_OTHERS = 64  # files that are not connections


def run_app(build: Callable[[], ServerServices], config: ServerConfig, *, started_at: float | None = None) -> int:
    """Serve until SIGTERM or SIGINT and return the exit code.

    The port is taken before ``build`` runs, so that a port in use costs no model load. ``started_at`` is the instant on
    the monotonic clock that the ready line counts from. ``build`` returns an engine that is not yet started.

    Raises:
        ConfigError: the address cannot be listened on.
    """
    started_at = time.monotonic() if started_at is None else started_at
    if not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    _allow_many_connections()
    with listening_socket(config) as listener:
        services = build()
        app = create_app(services, config)
        services.engine.start()
        try:
            server = _Server(_uvicorn_config(app, config), app.state.context, listener, started_at)
            with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
                runner.run(server.serve(sockets=[listener]))
        finally:
            services.engine.stop()
            services.generator.close()
    logger.info("Hotseat has stopped.")
    return 0


class _Server(uvicorn.Server):
    """Uvicorn, with shutdown as we want it: refuse, drain, then tell the rest that it is over."""

    def __init__(
        self, config: uvicorn.Config, context: ServerContext, listener: socket.socket, started_at: float
    ) -> None:
        super().__init__(config)
        self._context = context
        self._listener = listener
        self._started_at = started_at
        self._shutdown = _Shutdown(self, context.in_flight, context.config.shutdown_timeout_s)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections and say so."""
        await super().startup(sockets)
        services, config = self._context.services, self._context.config
        took_s = time.monotonic() - self._started_at
        logger.info(
            "Hotseat %s serves %s at %s (%d seats, ready in %.2f s%s)",
            hotseat_version(),
            ", ".join(services.model.served_names),
            _url(self._listener, config),
            services.max_num_seqs,
            took_s,
            "; reachable from this machine only" if _is_loopback(self._listener) else "",
        )
        if not _is_loopback(self._listener) and not self._context.api_keys:
            logger.warning("There is no --api-key: anybody who can reach this machine can use the server.")

    async def main_loop(self) -> None:
        """Serve until asked to go down. Uvicorn looks ten times a second whether it was; here it is told."""
        services = self._context.services
        monitor = None if services.observe_loop_lag is None else LagMonitor(services.observe_loop_lag)
        while not await self.on_tick(0):  # sets the date header
            if services.tick is not None:
                services.tick(services.engine.clock.now())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._shutdown.is_drained.wait(), TICK_S)
        if monitor is not None:
            monitor.stop()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take SIGTERM and SIGINT for as long as the server runs; both end it with exit code 0."""
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self._shutdown.advance)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)


class _Shutdown:
    """The stages of a shutdown. A signal starts them; a second one does not wait for running requests.

    drain    new requests get 503 and /ready says so; who connects is answered, until the last running request has ended
    end all  when the time is up, the others are told that it is over
    close    no new connections are taken, and the others end after their last response
    give up  those that still do not read are dropped
    """

    def __init__(self, server: uvicorn.Server, in_flight: InFlightRequests, timeout_s: float) -> None:
        self._server = server
        self._in_flight = in_flight
        self._timeout_s = timeout_s
        self._deadline: asyncio.TimerHandle | None = None
        self.is_drained = asyncio.Event()

    def advance(self) -> None:
        """Enter the next stage."""
        if self._deadline is None:
            self._drain()
        else:
            self._deadline.cancel()
            self._end_all()

    def _drain(self) -> None:
        logger.info("Shutting down: %d requests get up to %g s to finish.", len(self._in_flight), self._timeout_s)
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(self._timeout_s, self._end_all)
        self._in_flight.refuse_new(once_empty=self._close)

    def _close(self) -> None:
        self._server.should_exit = True
        self.is_drained.set()

    def _end_all(self) -> None:
        count = self._in_flight.end_all(shutting_down())
        if count:
            logger.warning("Aborted %d requests that had not finished.", count)
        self._close()
        asyncio.get_running_loop().call_later(GRACE_PERIOD_S, self._give_up)

    def _give_up(self) -> None:
        for connection in tuple(self._server.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()  # who waits for this client to read goes on
        self._server.force_exit = True


def _uvicorn_config(app: object, config: ServerConfig) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        http=partial(  # type: ignore[arg-type]
            HttpProtocol,
            receive_timeout_s=config.receive_timeout_s,
            connections=ConnectionTable(config.max_connections or _default_connections()),
        ),
        ws="none",
        lifespan="off",
        access_log=False,  # the middleware writes a line at the end of each request, with more in it
        log_config=None,
        log_level=logging.WARNING,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        root_path=config.root_path,
        ssl_keyfile=config.ssl_keyfile,
        ssl_certfile=config.ssl_certfile,
    )


@contextlib.contextmanager
def listening_socket(config: ServerConfig) -> Iterator[socket.socket]:
    """Listen where ``config`` says.

    Raises:
        ConfigError: the address cannot be listened on.
    """
    try:
        address = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.create_server(address[4][:2], family=address[0], backlog=2048, reuse_port=False)
    except OSError as error:
        holder = port_holder(config.port) if error.errno == errno.EADDRINUSE else ""
        raise ConfigError(f"cannot listen on {config.host} port {config.port}: {_reason(error)}{holder}") from error
    with listener:
        # Connections inherit it. Asyncio would set it, but not on sockets that were made with protocol number 0.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield listener


def _reason(error: OSError) -> str:
    """Return why an address cannot be listened on; Python's own text repeats the address."""
    is_about_names = isinstance(error, socket.gaierror)
    return str(error.strerror or error) if is_about_names or not error.errno else os.strerror(error.errno)


def _url(listener: socket.socket, config: ServerConfig) -> str:
    scheme = "https" if config.ssl_certfile else "http"
    host, port = listener.getsockname()[:2]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{config.root_path}"


def _is_loopback(listener: socket.socket) -> bool:
    host: str = listener.getsockname()[0]
    return host == "::1" or host.startswith("127.")


def _default_connections() -> int:
    """Return how many connections leave some files for everything else."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MANY_FILES if soft == resource.RLIM_INFINITY else max(1, soft - min(FILES_FOR_OTHERS, soft // 2))


def _allow_many_connections() -> None:
    """Raise the soft limit of open files: each connection takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MANY_FILES if hard == resource.RLIM_INFINITY else min(hard, MANY_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
