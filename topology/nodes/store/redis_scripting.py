"""What the scripts of a memory in Redis share."""

from __future__ import annotations

import hashlib
from typing import NamedTuple, final

__all__ = ["QUEUE", "SUMS", "Script", "script"]

_GROUP = "trainer"
_CONSUMER = "reader"


@final
class Script(NamedTuple):
    """A script and the name under which the server keeps it."""

    text: bytes
    digest: bytes


def script(text: str) -> Script:
    """Of that text."""
    source = text.strip().replace("$GROUP", _GROUP).replace("$CONSUMER", _CONSUMER).encode()
    return Script(source, hashlib.sha1(source).hexdigest().encode())  # Redis names them so


SUMS = """
local function add(state, prefix, sign, count, steps, bytes, episodes)
  local function change(name, number)  -- minus nothing is "-0" to Lua, which is no integer to Redis
    if number ~= 0 then redis.call('HINCRBY', state, prefix .. name, sign * number) end
  end
  change('count', count)
  change('steps', steps)
  change('bytes', bytes)
  change('episodes', episodes)
end
local function sizes_of(text)
  local steps, bytes, episode, data = string.match(text, '^(%d+) (%d+) ([01]) (.+)$')
  return tonumber(steps), tonumber(bytes), tonumber(episode), data
end
"""

QUEUE = """
local function ring(key)
  redis.call('DEL', key)
  redis.call('RPUSH', key, '1')
  redis.call('EXPIRE', key, 60)
end
-- Calls visit(key, steps, bytes) for those who wait, in order, until it returns true; drops those who are gone.
local function walk(queue, visit)
  local keys = redis.call('LRANGE', queue, 0, 999)
  if #keys == 0 then return end
  local names = {}
  for i, key in ipairs(keys) do names[i] = key .. ':alive' end
  for i, text in ipairs(redis.call('MGET', unpack(names))) do
    if text then
      local steps, bytes = string.match(text, '^(%d+) (%d+)$')
      if visit(keys[i], tonumber(steps), tonumber(bytes)) then return end
    else
      redis.call('LREM', queue, 1, keys[i])
    end
  end
end
-- Rings all for whom there is room beside those before them.
local function ring_who_fits(state, queue)
  if redis.call('EXISTS', queue) == 0 then return end
  local sums = redis.call('HMGET', state, 'max_steps', 'max_bytes', 'steps', 'bytes')
  local steps, bytes = tonumber(sums[3]) or 0, tonumber(sums[4]) or 0
  walk(queue, function(key, its_steps, its_bytes)
    steps, bytes = steps + its_steps, bytes + its_bytes
    if steps > tonumber(sums[1]) or bytes > tonumber(sums[2]) then return true end
    ring(key)
  end)
end
"""
