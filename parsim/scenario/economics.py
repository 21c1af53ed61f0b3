"""The `economics` section: what the machine costs and draws, and how often it fails."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

from parsim.scenario.reliability import CheckpointSection, FailureSection, RecoverySection
from parsim.scenario.values import JsonSchema, Kind, Number, Quantity, Section, did_you_mean, shown

CURRENCIES = (
    "USD", "EUR", "GBP", "CNY", "JPY", "INR", "KRW", "TWD", "SGD", "HKD", "AUD", "CAD", "CHF", "SEK", "NOK", "DKK", "PLN", "CZK", "ILS",
    "AED", "SAR", "BRL", "MXN", "ZAR", "NZD", "THB", "VND", "IDR", "MYR", "TRY",
)  # fmt: skip
"""ISO 4217 codes"""
LARGEST_PRICE = 1e12
YEAR = 365.25 * 24
"""hours"""
_AMOUNT = r"[0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_PRICE = re.compile(rf"(?:([A-Za-z]{{3}}) *)?({_AMOUNT})(?: *([A-Za-z]{{3}}))?")
_SIGNS = {"$": "USD", "€": "EUR", "£": "GBP", "¥": "CNY or JPY", "₹": "INR", "元": "CNY"}


@dataclass(frozen=True)
class Currency(Kind):
    """An ISO 4217 code."""

    def check(self, value: Any) -> Any:
        if isinstance(value, str) and value in CURRENCIES:
            return value
        word = str(value).strip()
        meant = word.upper() if word.upper() in CURRENCIES else _SIGNS.get(word)
        raise ValueError(f"{shown(value)} is not a currency; {f'write {meant}' if meant else 'known: ' + ', '.join(CURRENCIES)}")

    def json_schema(self) -> JsonSchema:
        return {"type": "string", "pattern": "^[A-Z]{3}$", "examples": ["USD"]}


@dataclass(frozen=True, slots=True)
class Money:
    """An amount as written."""

    amount: float
    currency: str = ""
    """empty: that of the scenario, or of the question"""

    def __str__(self) -> str:
        """As the section reads it."""
        return f"{self.amount:.15g} {self.currency}".strip()


@dataclass(frozen=True)
class Price(Kind):
    """An amount of money: a number in economics.currency, or a text that names the currency, such as "2.50 USD"; or one of `words`."""

    words: tuple[str, ...] = ()

    def check(self, value: Any) -> Any:
        if value is None or (isinstance(value, str) and value in self.words):
            return value
        rule = " or ".join((f'a price from 0 to {LARGEST_PRICE:g}, for example 2.50 or "2.50 USD"', *self.words))
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= LARGEST_PRICE:
            return Money(float(value))
        match = _PRICE.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None or (match[1] and match[3]):
            raise ValueError(f"{shown(value)} is not {rule}{self._hint(value)}")
        code, amount = (match[1] or match[3] or "").upper(), float(match[2].replace("_", ""))
        if code and code not in CURRENCIES:
            raise ValueError(f"{shown(value)}: {code} is not a known currency; {did_you_mean(code, CURRENCIES) or 'write USD'}")
        if amount > LARGEST_PRICE:
            raise ValueError(f"{shown(value)} is not {rule}")
        return Money(amount, code)

    def _hint(self, value: Any) -> str:
        text = str(value)
        sign = next((code for sign, code in _SIGNS.items() if sign in text), "")
        if sign:
            return f"; write the currency as {sign}"
        if "," in text:
            return "; write thousands without commas"
        return f"; {near}" if (near := did_you_mean(text, self.words)) else ""

    def json_schema(self) -> JsonSchema:
        text = {"type": "string", "pattern": rf"^([A-Z]{{3}} *)?{_AMOUNT}( *[A-Z]{{3}})?$", "examples": ["2.50 USD"]}
        number = {"type": "number", "minimum": 0, "maximum": LARGEST_PRICE}
        return {"anyOf": [number, text, *({"const": word} for word in self.words), {"type": "null"}]}


_SHARE = Number(0.0, 1.0, words=("auto",))


class PurchaseSection(Section):
    """Hardware that is bought, not rented: its price spread over the hours in which it trains."""

    node: Annotated[Money | None, Price()] = None
    """price of one machine with its share of the network; or give gpu"""
    gpu: Annotated[Money | None, Price()] = None
    """price of one GPU with its share of machine and network; or give node"""
    years: Annotated[float, Number(0.0, 100.0, above=True)] = 4.0
    """years after which the hardware is worth nothing"""
    utilisation: Annotated[float, Number(0.0, 1.0, above=True)] = 1.0
    """share of these years in which it trains; an hour of training pays for the idle ones too"""
    upkeep: Annotated[float, Number(0.0, 10.0)] = 0.0
    """space, staff and repairs per year, as a share of the price"""


class GpuPowerSection(Section):
    """What a GPU draws: shares of the way from idle (0) to TDP (1)."""

    computing: Annotated[Any, _SHARE] = "auto"
    """while kernels run on its compute lane; auto = 0.9"""
    communicating: Annotated[Any, _SHARE] = "auto"
    """while it does nothing but communicate or copy; auto = 0.5"""
    waiting: Annotated[Any, _SHARE] = "auto"
    """while it waits for others or for its host; auto = 0.3"""


class EconomicsSection(Section):
    """Prices, power and failures, for cost, energy and goodput; one currency. Any key here turns them on, and so does training.tokens."""

    currency: Annotated[str, Currency()] = "USD"
    """of every price without one; prices in another are refused, not converted"""
    gpu_hour: Annotated[Any, Price(("example",))] = None
    """rent of one GPU for one hour (2.50 or "2.50 USD"); example = the topology's dated example price, which is also what null means
    where no other price is given"""
    purchase: PurchaseSection | None = None
    """hardware that is bought instead of rented"""
    power_price: Annotated[Money | None, Price()] = None
    """price of one kWh; leave it out where the rent includes power"""
    pue: Annotated[float, Number(1.0, 10.0)] = 1.2
    """power usage effectiveness of the building: what it draws over what the machines draw"""
    node_power: Annotated[Any, Quantity("power", words=("auto",))] = "auto"
    """what a machine draws beside its GPUs: CPUs, memory, NICs, switches, fans; auto = the topology's, else half the TDP of its GPUs"""
    gpu_power: GpuPowerSection = GpuPowerSection()
    """what a GPU draws between idle and TDP"""
    carbon_intensity: Annotated[float | None, Number(0.0, 10.0, optional=True)] = None
    """kg of CO2 equivalent per kWh"""
    mtbf_per_gpu: Annotated[float | None, Quantity("time", optional=True)] = None
    """mean time between failures that stop the job, of one GPU with its share of the rest; the job's is this over its GPUs"""
    failures: tuple[FailureSection, ...] = ()
    """instead of mtbf_per_gpu: causes, [{cause: hbm, per_gpu: 294912 h, detect: 10 s}], or the name of a published list (llama-3)"""
    checkpoint: CheckpointSection = CheckpointSection()
    """what training goes on from after a failure"""
    recovery: RecoverySection = RecoverySection()
    """what happens after a failure"""
    horizon: Annotated[float | None, Quantity("time", 1e9, optional=True)] = None
    """wall time for which the training is simulated with its failures: a timeline beside the closed form (training_run)"""
