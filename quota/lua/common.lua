-- SPDX-FileCopyrightText: The Penstock Authors
-- SPDX-License-Identifier: Apache-2.0
--
-- What the scripts share; each of them begins with this text. Times are
-- microseconds of the server's clock. A limit is a hash: u what is used, t when
-- that was, w the window (calendar: its beginning, sliding: the newest slot), r
-- what of it is reserved, s0 to s60 the slots of a sliding window. What window.go
-- says of counters holds here too; numbers are doubles, so that comparisons allow
-- for a millionth.
--
-- A reservation is a member of the sorted set "open", by the end of its lease, and
-- a field of the hash "held" that says what it has taken. Whose lease ends gives
-- all of it back and is remembered in "lapsed", so that a late settlement counts
-- in full and a repeated one not again.

local SLOTS = 60
local EPS = 1e-6
local KEEP = 608400000 -- milliseconds: longer than any request
local REMEMBER = 3600000000 -- microseconds, of the lapsed

local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])

-- read brings a limit to this moment. kind: b bucket, s sliding, c calendar,
-- n none. p: of b the length; of s the length of a slot; of c the beginnings of
-- the last, this and the next two periods as the gateway's clock has them.
local function read(key, kind, amount, p)
  local h = redis.call('HMGET', key, 'u', 't', 'w', 'r')
  local l = {key = key, kind = kind, amount = amount, p = p, u = tonumber(h[1]) or 0, w = tonumber(h[3]), r = tonumber(h[4]) or 0, found = h[1]}
  if kind == 'b' then
    local t = tonumber(h[2]) or now
    if now > t then l.u = math.max(0, l.u - (now - t) * amount / p[1]) end
  elseif kind == 's' then
    local slot = math.floor(now / p[1])
    l.w = l.w or slot
    if slot > l.w then
      if slot - l.w > SLOTS then
        l.u = 0
        for i = 0, SLOTS do redis.call('HDEL', key, 's' .. i) end
      else
        for i = l.w + 1, slot do
          local f = 's' .. (i % (SLOTS + 1))
          local v = redis.call('HGET', key, f)
          if v then
            l.u = math.max(0, l.u - tonumber(v))
            redis.call('HDEL', key, f)
          end
        end
      end
      l.w = slot
    end
  elseif kind == 'c' then
    local start, stop = p[2], p[3]
    if now >= p[3] then start, stop = p[3], p[4] elseif now < p[2] then start, stop = p[1], p[2] end
    if not l.w or start > l.w then l.u = 0 end
    l.w, l.stop = start, stop
  end
  return l
end

local function write(l)
  redis.call('HSET', l.key, 'u', l.u, 't', now, 'w', l.w or 0, 'r', l.r)
  local keep = KEEP
  if l.kind == 'b' then keep = keep + l.p[1] / 1000 * math.max(1, l.u / math.max(l.amount, 1))
  elseif l.kind == 's' then keep = keep + l.p[1] * SLOTS / 1000
  elseif l.kind == 'c' then keep = keep + math.max(0, (l.stop - now) / 1000) end
  redis.call('PEXPIRE', l.key, string.format('%.0f', math.min(keep, 1e14)))
end

local function slot(l, window) return 's' .. (window % (SLOTS + 1)) end

-- wait is how long it takes until over is gone; -1: it never is.
local function wait(l, over)
  if l.kind == 'b' then
    if l.amount <= 0 then return -1 end
    return over * l.p[1] / l.amount
  elseif l.kind == 's' then
    local sum = 0
    for i = l.w - SLOTS, l.w do
      if i >= 0 then sum = sum + (tonumber(redis.call('HGET', l.key, slot(l, i))) or 0) end
      if sum >= over - EPS then return (i + SLOTS + 1) * l.p[1] - now end
    end
    return SLOTS * l.p[1]
  elseif l.kind == 'c' then
    return l.stop - now
  end
  return 1000000
end

local function reset(l)
  if l.kind == 'c' then return l.stop - now end
  if l.kind == 'n' or l.u <= EPS then return 0 end
  if l.kind == 's' then return (l.w + SLOTS + 1) * l.p[1] - now end
  return wait(l, l.u)
end

-- release takes back an amount of what was reserved of a limit, whose window may
-- be over. It works without the limit's terms: what flows off a bucket may do so
-- later.
local function release(key, kind, reserved, amount, window)
  local h = redis.call('HMGET', key, 'u', 'w', 'r')
  if not h[1] then return end
  local u, w, r = tonumber(h[1]), tonumber(h[2]) or 0, tonumber(h[3]) or 0
  redis.call('HSET', key, 'r', math.max(0, r - reserved))
  if kind == 'c' and w ~= window then return end
  if kind == 's' then
    if w - window > SLOTS then return end
    local f = 's' .. (window % (SLOTS + 1))
    local v = tonumber(redis.call('HGET', key, f)) or 0
    amount = math.min(amount, v)
    redis.call('HSET', key, f, v - amount)
  end
  redis.call('HSET', key, 'u', math.max(0, u - amount))
end

-- parts are what a reservation holds: the end of the key, the kind, the amount and
-- the window of each limit.
local function parts(held)
  local list = {}
  for id, kind, amount, window in string.gmatch(held, '([^,;]+),(%a),([^,;]+),([^,;]+)') do
    list[#list + 1] = {id = id, kind = kind, amount = tonumber(amount), window = tonumber(window)}
  end
  return list
end

-- lapse ends leases that are over, some at a time. base is the beginning of all
-- keys of the group.
local function lapse(open, held, lapsed, base)
  local over = redis.call('ZRANGEBYSCORE', open, '-inf', now, 'LIMIT', 0, 100)
  for _, id in ipairs(over) do
    redis.call('ZREM', open, id)
    local text = redis.call('HGET', held, id)
    redis.call('HDEL', held, id)
    if text then
      for _, p in ipairs(parts(text)) do release(base .. p.id, p.kind, p.amount, p.amount, p.window) end
    end
    redis.call('ZADD', lapsed, now, id)
  end
  if #over > 0 then
    redis.call('ZREMRANGEBYSCORE', lapsed, '-inf', now - REMEMBER)
    redis.call('PEXPIRE', lapsed, REMEMBER / 1000)
  end
end

-- terms reads what the gateway says of limit i of a script whose arguments for
-- limits begin after first: id, kind, amount, four numbers and n more.
local function terms(first, i, n)
  local a = first + (i - 1) * (7 + n)
  local p = {tonumber(ARGV[a + 4]), tonumber(ARGV[a + 5]), tonumber(ARGV[a + 6]), tonumber(ARGV[a + 7])}
  return ARGV[a + 1], ARGV[a + 2], tonumber(ARGV[a + 3]), p, a + 7
end
