"""The processes of a pool: templates, the scorers forked from them, and what became of those that have ended."""

from __future__ import annotations

import selectors
import signal
from concurrent.futures import Future

from verl_core.config.errors import RunError
from verl_core.rewards.orders import Ended
from verl_core.rewards.process import Scorer, Task
from verl_core.rewards.registry import Setup
from verl_core.rewards.template import Template
from verl_core.rewards.verdict import CPU

LOST = "crash: the process that starts scorer processes ended"
STARTS = 3  # scorers in a row that may be lost before they have begun


class Staff:
    """Used by one thread. One template makes all scorers where its rules allow that; of those that do not, one is made
    for each scorer, and one more is kept ready."""

    def __init__(self, setup: Setup, workers: int, selector: selectors.BaseSelector):
        """Loads the rules. Raises UserError when they cannot be."""
        self._setup, self._workers, self._selector = setup, workers, selector
        self.scorers: list[Scorer] = []
        self._templates: list[Template] = []
        self._ending: dict[int, tuple[Scorer, Task | None]] = {}  # by pid: whose status has been asked for
        self._data_sources: list[str] = []
        self._lost = 0
        self._add_template().wait()

    def hire(self, count: int, timeout_s: float) -> list[Scorer]:
        """Up to `count` new scorers: as many as there are templates for. Raises RunError when none can be started."""
        hired: list[Scorer] = []
        while len(hired) < count and (template := next((t for t in self._templates if t.free), None)):
            try:
                scorer = Scorer(template, timeout_s)
            except OSError as e:  # the template has gone, or there are too many open files
                self._count_lost(e)
                break
            self._selector.register(scorer.channel, selectors.EVENT_READ, scorer)
            self.scorers.append(scorer)
            hired.append(scorer)
            if template.spent:
                self._selector.unregister(template.channel)  # it has nothing to say any more
        wanted = 1 if self._one_is_enough() else count - len(hired) + 1
        for _ in range(wanted - sum(not t.spent for t in self._templates)):
            self._add_template()
        return hired

    def dismiss(self, scorer: Scorer, blamed: Task | None = None) -> str | None:
        """Kills a scorer. Returns why it has ended, where that is known at once; else `blamed`, the answer that was its
        end, comes from `hear` with the reason."""
        self._selector.unregister(scorer.channel)
        self.scorers.remove(scorer)
        scorer.kill()
        if scorer.pid is None:
            self._count_lost(None)
        else:
            self._lost = 0
        if scorer.template.spent:
            self._templates.remove(scorer.template)
            return self._reason(scorer.template.close())
        if scorer.pid is not None and not scorer.template.gone:
            self._ending[scorer.pid] = (scorer, blamed)
        return None

    def await_sockets(self) -> None:
        """Waits for room as well in the sockets of scorers that have not been given all of their answers yet."""
        for scorer in self.scorers:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if scorer.channel.unsent else 0)
            if self._selector.get_key(scorer.channel).events != wanted:
                self._selector.modify(scorer.channel, wanted, scorer)

    def load(self, data_sources: list[str], future: Future[None]) -> None:
        """Rules for scorers that are made from now on."""
        self._data_sources += data_sources
        for template in self._templates:
            if not template.spent:
                template.load(data_sources, future)
                return
        self._add_template().load(data_sources, future)

    def loads(self) -> list[Future[None]]:
        """What waits for rules to be loaded."""
        return [future for t in self._templates for future in t.loads if future is not None]

    def hear(self, template: Template) -> list[tuple[Task, str]]:
        """What a template has to say: for answers that were blamed, why their processes ended.

        Raises UserError when its rules cannot be loaded.
        """
        told = []
        values, gone = template.read()
        for value in values:
            if isinstance(value, Ended):
                _, task = self._ending.pop(value.pid)
                if task is not None:
                    told.append((task, self._reason(value.status)))
            else:
                template.note(value)
        if gone:
            told += self._bereave(template)
        return told

    def close(self) -> None:
        for scorer in self.scorers:
            scorer.kill()
        for template in self._templates:
            template.close()

    def _add_template(self) -> Template:
        template = Template(self._setup)
        if self._data_sources:
            template.load(self._data_sources)
        self._templates.append(template)
        self._selector.register(template.channel, selectors.EVENT_READ, template)
        return template

    def _one_is_enough(self) -> bool:
        return not any(t.spent for t in self._templates)

    def _bereave(self, template: Template) -> list[tuple[Task, str]]:
        """A template has died. Returns answers whose processes' ends it was to explain."""
        told = [task for scorer, task in self._ending.values() if scorer.template is template and task is not None]
        self._ending = {pid: ended for pid, ended in self._ending.items() if ended[0].template is not template}
        self._selector.unregister(template.channel)
        self._templates.remove(template)
        template.close()
        self._count_lost(None)
        return [(task, LOST) for task in told]

    def _reason(self, status: int) -> str:
        if status == -signal.SIGPROF and self._setup.cpu_s is not None:
            return f"{CPU} more than {self._setup.cpu_s:g} s of processor time"
        return f"crash: the scorer process ended with status {status}"

    def _count_lost(self, error: OSError | None) -> None:
        self._lost += 1
        if self._lost >= STARTS:
            raise RunError(f"scorer processes cannot be started{f': {error}' if error else ''}", "look at free memory")
