"""What a memory in Redis does in one piece: scripts that run in the server.

All keys of a memory begin with `topology:{NAME}:`, and live in one slot of a cluster:

    state     hash: bounds, sums of what is there, sums of what of it is delivered, the reader, what it waits for,
              and how long all this is kept, if nobody needs it any more
    stream    stream: an entry for each experience, read by the group `trainer`
    sizes     hash: by entry, "steps bytes episode payload-key". What has no size here was not stored by us
    queue     list: writers that wait for room, by their wake key, first come first served
    bell      list: rung when the reader has what it waits for
    wake:W    list: rung when there is room for writer W, beside those who came before it; wake:W:alive has the steps
              and bytes it needs, and expires when W is gone
    writer:W  string: number and id of the latest experience of W, so that what is sent again is not stored again
    data:W:N  string: the frame of an experience. It goes there before the script that makes it visible, as an argument
              of SET, which Redis takes over without a copy, and which a writer that has to wait need not send again

The reader has no consumer of its own for each incarnation: it reads through `TAKE`, which lets only the newest reader
through. What is in the stream is what was not acknowledged, so a new reader begins again at its start.

A server whose memory is full refuses a script whose first change could take more: those of the reader, which end that
state, therefore begin with a change that cannot; so does opening what is there already, which a reader does first.
"""

from __future__ import annotations

from topology.nodes.store.redis_scripting import QUEUE, SUMS, script

__all__ = ["ACKNOWLEDGE", "ATTACH", "DELETE", "EXPIRE", "OPEN", "STATS", "STORE", "TAKE", "WITHDRAW"]

OPEN = script("""
-- state, stream; max_steps, max_bytes
if redis.call('HEXISTS', KEYS[1], 'max_bytes') == 1 then redis.call('HDEL', KEYS[1], '') end  -- one that is there
local made = redis.call('HSETNX', KEYS[1], 'max_steps', ARGV[1])
redis.call('HSETNX', KEYS[1], 'max_bytes', ARGV[2])
local created = redis.pcall('XGROUP', 'CREATE', KEYS[2], '$GROUP', '0', 'MKSTREAM')
if created.err and not string.find(created.err, 'BUSYGROUP') then return created end
local bounds = redis.call('HMGET', KEYS[1], 'max_steps', 'max_bytes')
return {made, bounds[1], bounds[2]}
""")

STORE = script(
    QUEUE
    + """
-- state, stream, sizes, queue, bell, writer, data, wake, writer before; number, steps, bytes, episode, number before
-- Unless that is 0, it waits until the writer before has stored its own of that number.
-- {1, id}: stored; {0}: wait for `wake`; {-1}: open it first; {-2}: send the data again
-- Every call costs: sums are read once and written once, and whether the data is there is told by what must be done.
local state, stream, sizes, queue, bell, writer, data, wake, before = unpack(KEYS)
local number, steps, bytes, episode = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local latest = redis.call('GET', writer)
if latest then
  local last, id = string.match(latest, '^(%d+) (.+)$')
  if last == number then
    if redis.call('HEXISTS', sizes, id) == 1 then redis.call('PERSIST', data) else redis.call('DEL', data) end
    return {1, id}
  end
end
local sums = redis.call('HMGET', state, 'max_steps', 'max_bytes', 'steps', 'bytes', 'count', 'episodes', 'stored',
  'want', 'want_what', 'held:steps', 'held:episodes', 'expires')
if not sums[1] then return {-1} end
for i = 3, 7 do sums[i] = tonumber(sums[i]) or 0 end
local new_steps, new_bytes, new_episodes = sums[3] + steps, sums[4] + bytes, sums[6] + episode
local follows = false
if ARGV[5] ~= '0' then
  local stored = string.match(redis.call('GET', before) or '', '^%d+')
  follows = not stored or tonumber(stored) < tonumber(ARGV[5])
end
local before_steps, before_bytes, waited = 0, 0, false  -- room is kept for those who came before
walk(queue, function(key, its_steps, its_bytes)
  waited = key == wake
  if waited then return true end
  before_steps, before_bytes = before_steps + its_steps, before_bytes + its_bytes
end)
if follows or new_steps + before_steps > tonumber(sums[1]) or new_bytes + before_bytes > tonumber(sums[2]) then
  if redis.call('EXPIRE', data, 60) == 0 then return {-2} end
  redis.call('SET', wake .. ':alive', ARGV[2] .. ' ' .. ARGV[3], 'EX', 3)
  if not waited and not redis.call('LPOS', queue, wake) then redis.call('RPUSH', queue, wake) end
  if sums[12] then redis.call('EXPIRE', queue, sums[12]) end
  return {0}
end
local has_data
if sums[12] then has_data = redis.call('EXPIRE', data, sums[12]) else has_data = redis.call('PERSIST', data) end
if has_data == 0 then return {-2} end
local id = redis.call('XADD', stream, '*', 'data', data)
redis.call('HSET', sizes, id, ARGV[2] .. ' ' .. ARGV[3] .. ' ' .. ARGV[4] .. ' ' .. data)
if sums[12] then redis.call('EXPIRE', sizes, sums[12]) end  -- it was gone if it was empty
redis.call('SET', writer, number .. ' ' .. id, 'EX', 86400)
redis.call('HSET', state, 'steps', new_steps, 'bytes', new_bytes, 'episodes', new_episodes, 'count', sums[5] + 1,
  'stored', sums[7] + 1)
if waited then
  redis.call('LREM', queue, 1, wake)
  redis.call('DEL', wake .. ':alive')
end
if sums[8] then
  local there = sums[9] == 'episodes' and new_episodes - (tonumber(sums[11]) or 0)
    or new_steps - (tonumber(sums[10]) or 0)
  if there >= tonumber(sums[8]) then
    redis.call('HDEL', state, 'want')
    ring(bell)
  end
end
return {1, id}
"""
)

WITHDRAW = script(
    QUEUE
    + """
-- queue, writer, data, wake, state; number.  The id if it was stored, else ''
local latest = redis.call('GET', KEYS[2])
redis.call('LREM', KEYS[1], 0, KEYS[4])
redis.call('DEL', KEYS[4], KEYS[4] .. ':alive')
ring_who_fits(KEYS[5], KEYS[1])
if latest then
  local last, id = string.match(latest, '^(%d+) (.+)$')
  if last == ARGV[1] then return id end
end
redis.call('DEL', KEYS[3])
return ''
"""
)

EXPIRE = script("""
-- state, stream, sizes, queue, bell; seconds.  What comes later is to expire as well; until somebody reads again
local function expire(key) redis.call('EXPIRE', key, ARGV[1]) end
if redis.call('HEXISTS', KEYS[1], 'max_steps') == 0 then return 0 end
for _, key in ipairs(KEYS) do expire(key) end
redis.call('HSET', KEYS[1], 'expires', ARGV[1])
for _, text in ipairs(redis.call('HVALS', KEYS[3])) do
  expire(string.match(text, '^%d+ %d+ [01] (.+)$'))
end
return 1
""")

ATTACH = script("""
-- state, stream, sizes, queue, bell; the reader's name.  1, or -1: open it first
if redis.call('HEXISTS', KEYS[1], 'max_steps') == 0 then return -1 end
if redis.call('HDEL', KEYS[1], 'want', 'expires') > 0 then
  for _, key in ipairs(KEYS) do redis.call('PERSIST', key) end
  for _, text in ipairs(redis.call('HVALS', KEYS[3])) do
    redis.call('PERSIST', string.match(text, '^%d+ %d+ [01] (.+)$'))
  end
end
redis.call('HSET', KEYS[1], 'reader', ARGV[1], 'last', '0-0',
  'held:count', 0, 'held:steps', 0, 'held:bytes', 0, 'held:episodes', 0)
redis.call('XGROUP', 'SETID', KEYS[2], '$GROUP', '0')
return 1
""")

TAKE = script(
    SUMS
    + """
-- state, stream, sizes, bell; the reader's name, number, 'steps' | 'episodes' | 'available' (then number: at most), the
-- last id that the reader knows: what was delivered after that was lost on the way, and is taken back first
-- {1, id, text of sizes, ...}: delivered ('' for what we have not stored); {0}: wait for `bell`; {-1}: open it first;
-- {-2}: there is a newer reader
local state, stream, sizes, bell = unpack(KEYS)
local number, what = tonumber(ARGV[2]), ARGV[3]
local function read_sums()
  return redis.call('HMGET', state, 'reader', 'last', 'steps', 'held:steps', 'episodes', 'held:episodes')
end
local sums = read_sums()
if not sums[1] then return {-1} end
if sums[1] ~= ARGV[1] then return {-2} end
if sums[2] ~= ARGV[4] then
  local count, all_steps, all_bytes, all_episodes = 0, 0, 0, 0
  for _, entry in ipairs(redis.call('XRANGE', stream, '(' .. ARGV[4], sums[2])) do
    local text = redis.call('HGET', sizes, entry[1])
    if text then
      local steps, bytes, episode = sizes_of(text)
      count, all_steps, all_bytes = count + 1, all_steps + steps, all_bytes + bytes
      all_episodes = all_episodes + episode
    end
  end
  redis.call('XGROUP', 'SETID', stream, '$GROUP', ARGV[4])
  redis.call('HSET', state, 'last', ARGV[4])
  add(state, 'held:', -1, count, all_steps, all_bytes, all_episodes)
  sums = read_sums()
end
local there = what == 'episodes' and (tonumber(sums[5]) or 0) - tonumber(sums[6])
  or (tonumber(sums[3]) or 0) - tonumber(sums[4])
if what ~= 'available' and there < number then
  redis.call('DEL', bell)
  redis.call('HSET', state, 'want', number, 'want_what', what)
  return {0}
end
redis.call('HDEL', state, 'want')
local reply, found, count, last = {1}, 0, 0, sums[2]
local known, all_steps, all_bytes, all_episodes = 0, 0, 0, 0
local function enough(steps)
  if what == 'available' then return count > 0 and found + steps > number end
  return found >= number
end
local done = false
while not done do
  local entries = redis.call('XRANGE', stream, '(' .. last, '+', 'COUNT', 128)
  if #entries == 0 then break end
  for _, entry in ipairs(entries) do
    local text = redis.call('HGET', sizes, entry[1])
    local steps, bytes, episode = 0, 0, 0
    if text then steps, bytes, episode = sizes_of(text) end
    if enough(steps) then
      done = true
      break
    end
    reply[#reply + 1] = entry[1]
    reply[#reply + 1] = text or ''
    count = count + 1
    last = entry[1]
    if text then
      found = found + (what == 'episodes' and episode or steps)
      known, all_steps, all_bytes = known + 1, all_steps + steps, all_bytes + bytes
      all_episodes = all_episodes + episode
    end
  end
  if count >= 4096 then break end
end
if count > 0 then
  redis.call('XREADGROUP', 'GROUP', '$GROUP', '$CONSUMER', 'COUNT', count,
    'STREAMS', stream, '>')
  redis.call('HSET', state, 'last', last)
  add(state, 'held:', 1, known, all_steps, all_bytes, all_episodes)
end
return reply
"""
)

ACKNOWLEDGE = script(
    SUMS
    + QUEUE
    + """
-- state, stream, sizes, queue; how many of the ids are refused, ids
local state, stream, sizes, queue = unpack(KEYS)
local function parts(id)
  local ms, number = string.match(id, '^(%d+)-(%d+)$')
  return tonumber(ms), tonumber(number)
end
local last_ms, last_number = parts(redis.call('HGET', state, 'last') or '0-0')
local data_keys, ids, gone, held = {}, {}, {0, 0, 0, 0}, {0, 0, 0, 0}
local function count(sums, steps, bytes, episode)
  sums[1], sums[2], sums[3], sums[4] = sums[1] + 1, sums[2] + steps, sums[3] + bytes, sums[4] + episode
end
for i = 2, #ARGV do
  local id = ARGV[i]
  local text = redis.call('HGET', sizes, id)
  ids[#ids + 1] = id
  if text then
    local steps, bytes, episode, data = sizes_of(text)
    local ms, number = parts(id)
    redis.call('HDEL', sizes, id)
    data_keys[#data_keys + 1] = data
    count(gone, steps, bytes, episode)
    if ms < last_ms or (ms == last_ms and number <= last_number) then count(held, steps, bytes, episode) end
  end
end
redis.call('XACK', stream, '$GROUP', unpack(ids))
redis.call('XDEL', stream, unpack(ids))
if #data_keys > 0 then
  redis.call('UNLINK', unpack(data_keys))
  redis.call('HINCRBY', state, 'acknowledged', #data_keys)
  add(state, '', -1, unpack(gone))
  add(state, 'held:', -1, unpack(held))
end
if tonumber(ARGV[1]) > 0 then redis.call('HINCRBY', state, 'refused', ARGV[1]) end
ring_who_fits(state, queue)
return #data_keys
"""
)

DELETE = script("""
-- state, stream, sizes, queue, bell.  Who waits for room asks again within a second, and opens it first
local sizes = redis.pcall('HVALS', KEYS[3])
if sizes.err then sizes = {} end  -- something else lies there: it goes, too
for _, text in ipairs(sizes) do
  local data = string.match(text, '^%d+ %d+ [01] (.+)$')
  if data then redis.call('UNLINK', data) end
end
redis.call('UNLINK', unpack(KEYS))
return 1
""")

STATS = script("""
-- state, queue
local sums = redis.call('HMGET', KEYS[1], 'stored', 'acknowledged', 'refused', 'count', 'steps', 'bytes', 'episodes',
  'held:count', 'held:steps', 'held:bytes', 'held:episodes')
sums[12] = redis.call('LLEN', KEYS[2])
return sums
""")
